"""The configuration of off-policy algorithms. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollmill.settings.value_checks import (
    above_zero,
    any_number,
    at_least_zero,
    check_choice,
    check_integer,
    check_number,
    share,
    unit,
)

# Those that nobody has to register.
OFF_POLICY_ALGORITHMS = ("dqn", "ddpg", "td3", "sac")

EpsilonKind = Literal["schedule", "ladder"]
NoiseKind = Literal["gaussian", "ou", "pink"]
ValueLossKind = Literal["mse", "huber"]


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """What is learned from replayed transitions, and how a policy explores meanwhile.

    Defaults are those of Stable-Baselines3 2.9 (SB3), or of the algorithm's paper where the attribute says so. What is
    None is the algorithm's own, which differs from one to another; what an algorithm does not have, it does not read.

    Attributes:
        algorithm: ``"dqn"``, ``"ddpg"``, ``"td3"``, ``"sac"``, or a name given to
            :func:`rollmill.algorithms.registry.register_algorithm`.
        double: DQN: whether the online network chooses the action that the target network rates (van Hasselt et al.
            2016, https://arxiv.org/abs/1509.06461). SB3 and CleanRL do without.
        dueling: DQN: whether the network has one stream for the state's value and one for the actions' advantages (Wang
            et al. 2016, https://arxiv.org/abs/1511.06581).
        tau: Share of the online weights in each update of the target ones (Polyak averaging); 1 copies them. None is 1
            for DQN (Mnih et al. 2015) and 0.005 for the others (Fujimoto et al. 2018, Haarnoja et al. 2018).
        target_update_every: SGD steps from one update of the target networks to the next. None is 2500 where they are
            copied (SB3's 10,000 agent steps at one SGD step for each 4), else ``policy_delay``.
        value_rescaling: DQN: whether values are learned on the scale ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000``,
            which needs no clipping of rewards (Pohlen et al. 2018, https://arxiv.org/abs/1805.11593; R2D2).
        value_loss: Of temporal differences: ``"mse"`` (half the square) or ``"huber"`` (linear beyond 1). None is huber
            for DQN, mse for the others.
        num_critics: Networks that rate an action in TD3 and SAC, of which the lowest counts (clipped double Q-learning,
            Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477). DDPG has one.
        policy_delay: SGD steps of the critics for each one of the actor. None is 2 for TD3 and 1 for the others.
        target_noise: TD3: standard deviation of the noise on the target policy's actions, in units of half the range.
        target_noise_clip: TD3: bound of that noise.
        actor_learning_rate: None is the learner's. DDPG's paper has 1e-4 beside a critic's 1e-3.
        temperature: SAC: weight of the entropy, or ``"auto"``, which learns it (Haarnoja et al. 2018,
            https://arxiv.org/abs/1812.05905, section 5).
        initial_temperature: SAC: what ``temperature="auto"`` starts from.
        target_entropy: SAC: the entropy, in nats, that ``temperature="auto"`` aims at. ``"auto"`` is minus the number
            of real numbers in an action; for choices it is 0.89 times the greatest entropy there is (CleanRL;
            Christodoulou 2019, https://arxiv.org/abs/1910.07207, has 0.98).
        temperature_learning_rate: None is the learner's.
        epsilon_kind: DQN: ``"schedule"`` goes linearly from ``epsilon_start`` to ``epsilon_end``, the same for every
            row; ``"ladder"`` gives each row its own for the whole run (Horgan et al. 2018, Ape-X,
            https://arxiv.org/abs/1803.00933): ``ladder_epsilon ** (1 + ladder_alpha * i / (N - 1))``.
        epsilon_start: Probability of a random action at the start.
        epsilon_end: And from the end of the decay on.
        epsilon_fraction: Share of the run's agent steps after which the decay is over.
        epsilon_steps: Agent steps after which the decay is over, instead of ``epsilon_fraction``.
        ladder_epsilon: Ape-X' epsilon.
        ladder_alpha: Ape-X' alpha.
        noise_kind: DDPG and TD3: what is added to the policy's actions: ``"gaussian"``, independent in each step
            (Fujimoto et al. 2018), ``"ou"``, an Ornstein-Uhlenbeck process that starts at 0 in each episode (Lillicrap
            et al. 2016, https://arxiv.org/abs/1509.02971), or ``"pink"``, Gaussian noise with a power spectrum of 1/f,
            which explores slow and fast movements alike (Eberhard et al. 2023,
            https://openreview.net/forum?id=hQ9V5QN27eS). SAC: ``"pink"`` samples its exploring actions with such noise,
            the others with independent noise.
        noise_std: Sigma of either, in units of half the range. 0.1 is TD3's paper's, 0.2 DDPG's.
        ou_theta: The process' rate of return to 0.
        ou_dt: Its time step; 1 is the paper's, 0.01 Baselines' and SB3's.
        random_steps: Agent steps of the run, all rows together, whose actions are uniformly random. SB3 has 100, TD3's
            paper 1,000 to 10,000.
    """

    algorithm: str = "dqn"

    double: bool = False
    dueling: bool = False
    value_rescaling: bool = False

    tau: float | None = None
    target_update_every: int | None = None
    value_loss: ValueLossKind | None = None

    num_critics: int = 2
    policy_delay: int | None = None
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    actor_learning_rate: float | None = None

    temperature: float | Literal["auto"] = "auto"
    initial_temperature: float = 1.0
    target_entropy: float | Literal["auto"] = "auto"
    temperature_learning_rate: float | None = None

    epsilon_kind: EpsilonKind = "schedule"
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_fraction: float = 0.1
    epsilon_steps: int | None = None
    ladder_epsilon: float = 0.4
    ladder_alpha: float = 7.0

    noise_kind: NoiseKind = "gaussian"
    noise_std: float = 0.1
    ou_theta: float = 0.15
    ou_dt: float = 0.01
    random_steps: int = 100

    def __post_init__(self) -> None:
        """Refuses values that cannot be meant.

        Raises:
            ValueError: A value is out of range; the message names the field, the value, what is allowed and what to do.
        """
        if not self.algorithm or not isinstance(self.algorithm, str):
            raise ValueError(f"off_policy.algorithm={self.algorithm!r}: give a registered name")
        self._check_choices()
        self._check_integers()
        self._check_numbers()

    def _check_choices(self) -> None:
        choices: dict[str, tuple[Any, ...]] = {
            "double": (True, False),
            "dueling": (True, False),
            "value_rescaling": (True, False),
            "value_loss": (*get_args(ValueLossKind), None),
            "epsilon_kind": get_args(EpsilonKind),
            "noise_kind": get_args(NoiseKind),
        }
        for name, allowed in choices.items():
            check_choice(f"off_policy.{name}", getattr(self, name), allowed)

    def _check_integers(self) -> None:
        for name, least, otherwise in (
            ("target_update_every", 1, ", or None for the algorithm's own"),
            ("policy_delay", 1, ", or None for the algorithm's own"),
            ("num_critics", 1, ""),
            ("epsilon_steps", 1, ", or None to give epsilon_fraction instead"),
            ("random_steps", 0, ""),
        ):
            value = getattr(self, name)
            if value is not None or not otherwise:
                check_integer(f"off_policy.{name}", value, least, otherwise)

    def _check_numbers(self) -> None:
        rules: list[tuple[str, Callable[[float], bool], str]] = [
            ("tau", share, "above 0 and at most 1, or None for the algorithm's own"),
            ("target_noise", at_least_zero, "0 or more"),
            ("target_noise_clip", above_zero, "above 0 (target_noise=0 switches the noise off)"),
            ("actor_learning_rate", above_zero, "above 0, or None for the learner's"),
            ("temperature", at_least_zero, '0 or more, or "auto"'),
            ("initial_temperature", above_zero, "above 0"),
            ("target_entropy", any_number, '(nats), or "auto"'),
            ("temperature_learning_rate", above_zero, "above 0, or None for the learner's"),
            ("epsilon_start", unit, "in [0, 1]"),
            ("epsilon_end", unit, "in [0, 1]"),
            ("epsilon_fraction", share, "above 0 and at most 1 (of the run's agent steps)"),
            ("ladder_epsilon", share, "above 0 and at most 1"),
            ("ladder_alpha", at_least_zero, "0 or more"),
            ("noise_std", at_least_zero, "0 or more"),
            ("ou_theta", at_least_zero, "0 or more"),
            ("ou_dt", above_zero, "above 0"),
        ]
        for name, rule, allowed in rules:
            value = getattr(self, name)
            is_other = (value is None and "None" in allowed) or (value == "auto" and '"auto"' in allowed)
            if not is_other:
                check_number(f"off_policy.{name}", value, rule, allowed)

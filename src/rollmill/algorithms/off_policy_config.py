"""The configurations of off-policy algorithms. Imports no torch: the command line reads them before torch is needed.

Defaults are those of Stable-Baselines3 2.9 (SB3), or of the paper that the attribute names. None stands for the value
of the algorithm, which differs from one to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollmill.algorithms.config import AlgorithmConfig
from rollmill.models.config import ModelConfig
from rollmill.settings.fields import setting, tag
from rollmill.settings.value_checks import ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ZERO, NAME, SHARE, UNIT, integer
from rollmill.specs import BoxActions

EpsilonKind = Literal["schedule", "ladder"]
NoiseKind = Literal["gaussian", "ou", "pink"]
ValueLossKind = Literal["mse", "huber"]

_OWN = "for the algorithm's own"
_LEARNERS = "for the learner's"


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig, section="off_policy"):
    """What every off-policy algorithm has.

    Attributes:
        algorithm: ``"dqn"``, ``"ddpg"``, ``"td3"``, ``"sac"``, or a name given to
            :func:`rollmill.algorithms.registry.register_algorithm`, which has the settings of all of them.
        tau: Share of the online weights in each update of the target ones (Polyak averaging); 1 copies them. None is 1
            for DQN (Mnih et al. 2015) and 0.005 for the others (Fujimoto et al. 2018, Haarnoja et al. 2018).
        target_update_every: SGD steps from one update of the target networks to the next. None is 2500 where they are
            copied (SB3's 10,000 agent steps at one SGD step for each 4), else ``policy_delay``.
        value_loss: Of temporal differences: ``"mse"`` (half the square) or ``"huber"`` (linear beyond 1). None is huber
            for DQN, mse for the others.
        random_steps: Agent steps of the run, all rows together, whose actions are uniformly random. SB3 has 100, TD3's
            paper 1,000 to 10,000.
    """

    algorithm: str
    tau: float | None = setting(None, SHARE, _OWN)
    target_update_every: int | None = setting(None, integer(1), _OWN)
    value_loss: ValueLossKind | None = None
    random_steps: int = setting(100, integer(0))

    def box_actions(self, model: ModelConfig) -> BoxActions:
        """Off-policy algorithms learn actions in [-1, 1]."""
        return "scale"


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(OffPolicyConfig):
    """What algorithms have that rate each choice.

    Attributes:
        double: Whether the online network chooses the action that the target network rates (van Hasselt et al. 2016,
            https://arxiv.org/abs/1509.06461). SB3 and CleanRL do not.
        dueling: Whether the network has one stream for the state's value and one for the actions' advantages (Wang et
            al. 2016, https://arxiv.org/abs/1511.06581).
        value_rescaling: Whether values are learned on the scale ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000``,
            which needs no clipping of rewards (Pohlen et al. 2018, https://arxiv.org/abs/1805.11593; R2D2).
        epsilon_kind: ``"schedule"`` goes linearly from ``epsilon_start`` to ``epsilon_end``, the same for every row;
            ``"ladder"`` gives each row its own for the whole run (Horgan et al. 2018, Ape-X,
            https://arxiv.org/abs/1803.00933): ``ladder_epsilon ** (1 + ladder_alpha * i / (N - 1))``. Several
            policies with a fixed assignment have the whole ladder each, over their own rows.
        epsilon_start: Probability of a random action at the start.
        epsilon_end: And from the end of the decay on.
        epsilon_fraction: Share of the run's agent steps after which the decay is over.
        epsilon_steps: Agent steps after which the decay is over, instead of ``epsilon_fraction``.
        ladder_epsilon: Ape-X' epsilon.
        ladder_alpha: Ape-X' alpha.
    """

    double: bool = False
    dueling: bool = False
    value_rescaling: bool = False
    epsilon_kind: EpsilonKind = "schedule"
    epsilon_start: float = setting(1.0, UNIT)
    epsilon_end: float = setting(0.05, UNIT)
    epsilon_fraction: float = setting(0.1, SHARE, "(of the run's agent steps)")
    epsilon_steps: int | None = setting(None, integer(1), "to give epsilon_fraction instead")
    ladder_epsilon: float = setting(0.4, SHARE)
    ladder_alpha: float = setting(7.0, AT_LEAST_ZERO)


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(OffPolicyConfig):
    """What algorithms have that learn a policy of real numbers beside critics.

    Attributes:
        policy_delay: SGD steps of the critics for each one of the actor. None is 2 for TD3 and 1 for the others.
        actor_learning_rate: None is the learner's. DDPG's paper has 1e-4 beside a critic's 1e-3.
        noise_kind: DDPG and TD3: what is added to the policy's actions: ``"gaussian"``, independent in each step
            (Fujimoto et al. 2018), ``"ou"``, an Ornstein-Uhlenbeck process that starts at 0 in each episode (Lillicrap
            et al. 2016, https://arxiv.org/abs/1509.02971), or ``"pink"``, Gaussian noise with a power spectrum of 1/f,
            which explores slow and fast movements alike (Eberhard et al. 2023,
            https://openreview.net/forum?id=hQ9V5QN27eS). SAC: ``"pink"`` samples its exploring actions with such noise,
            the others with independent noise.
    """

    policy_delay: int | None = setting(None, integer(1), _OWN)
    actor_learning_rate: float | None = setting(None, ABOVE_ZERO, _LEARNERS)
    noise_kind: NoiseKind = "gaussian"


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(ActorCriticConfig):
    """What algorithms have whose policy is deterministic.

    Attributes:
        noise_std: Sigma of the noise, in units of half the range. 0.1 is TD3's paper's, 0.2 DDPG's.
        ou_theta: The Ornstein-Uhlenbeck process' rate of return to 0.
        ou_dt: Its time step; 1 is the paper's, 0.01 Baselines' and SB3's.
    """

    noise_std: float = setting(0.1, AT_LEAST_ZERO)
    ou_theta: float = setting(0.15, AT_LEAST_ZERO)
    ou_dt: float = setting(0.01, ABOVE_ZERO)


@dataclass(frozen=True, kw_only=True)
class TwinCriticsConfig(ActorCriticConfig):
    """What algorithms have whose critics are several.

    Attributes:
        num_critics: Networks that rate an action, of which the lowest counts (clipped double Q-learning, Fujimoto et
            al. 2018, https://arxiv.org/abs/1802.09477).
    """

    num_critics: int = setting(2, integer(1))


@dataclass(frozen=True, kw_only=True)
class SmoothedConfig(TwinCriticsConfig, DeterministicConfig):
    """What algorithms have that smooth the target policy.

    Attributes:
        target_noise: Standard deviation of the noise on the target policy's actions, in units of half the range.
        target_noise_clip: Bound of that noise.
    """

    target_noise: float = setting(0.2, AT_LEAST_ZERO)
    target_noise_clip: float = setting(0.5, ABOVE_ZERO, "(target_noise=0 switches the noise off)")


@dataclass(frozen=True, kw_only=True)
class SoftConfig(TwinCriticsConfig):
    """What algorithms have that are rewarded for the entropy of their policy.

    Attributes:
        temperature: Weight of the entropy, or ``"auto"``, which learns it (Haarnoja et al. 2018,
            https://arxiv.org/abs/1812.05905, section 5).
        initial_temperature: What ``temperature="auto"`` starts from.
        target_entropy: The entropy, in nats, that ``temperature="auto"`` aims at. ``"auto"`` is minus the number of
            real numbers in an action; for choices it is 0.89 times the greatest entropy there is (CleanRL;
            Christodoulou 2019, https://arxiv.org/abs/1910.07207, has 0.98).
        temperature_learning_rate: None is the learner's.
    """

    temperature: float | Literal["auto"] = setting("auto", AT_LEAST_ZERO)
    initial_temperature: float = setting(1.0, ABOVE_ZERO)
    target_entropy: float | Literal["auto"] = setting("auto", ANY_NUMBER, "(nats)")
    temperature_learning_rate: float | None = setting(None, ABOVE_ZERO, _LEARNERS)


@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """The settings of DQN."""

    algorithm: Literal["dqn"] = tag("dqn")


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(DeterministicConfig):
    """The settings of DDPG."""

    algorithm: Literal["ddpg"] = tag("ddpg")


@dataclass(frozen=True, kw_only=True)
class TD3Config(SmoothedConfig):
    """The settings of TD3."""

    algorithm: Literal["td3"] = tag("td3")


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig):
    """The settings of SAC."""

    algorithm: Literal["sac"] = tag("sac")


@dataclass(frozen=True, kw_only=True)
class OwnOffPolicyConfig(QLearningConfig, SmoothedConfig, SoftConfig):
    """The settings of a registered algorithm: those of all, because it may be made of parts of any."""

    algorithm: str = tag("", rule=NAME)


AnyOffPolicyConfig = DQNConfig | DDPGConfig | TD3Config | SACConfig | OwnOffPolicyConfig

_BUILT_IN: dict[str, type[AnyOffPolicyConfig]] = {
    "dqn": DQNConfig,
    "ddpg": DDPGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
}
OFF_POLICY_ALGORITHMS = tuple(_BUILT_IN)
"""Names of the built-in algorithms."""


def off_policy_config_of(algorithm: str) -> type[AnyOffPolicyConfig]:
    """The configuration of the algorithm with this name."""
    return _BUILT_IN.get(algorithm, OwnOffPolicyConfig)

"""Refuses settings that a user gives and that have no effect together with the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rollmill.algorithms.off_policy_config import OffPolicyConfig, OwnOffPolicyConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.models.config import ACTOR_CRITIC, BUILT_IN_ENCODERS
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.agent_roles import patterns_of
from rollmill.tracking.config import TENSORBOARD

if TYPE_CHECKING:
    from rollmill.settings.config import Config


# Settings of tracking that TensorBoard has no use for.
_FOR_SERVICES = (
    *("project", "run_name", "group", "tags", "wandb_entity", "mlflow_uri", "trackio_space", "upload_checkpoints"),
)


class _Idle(NamedTuple):
    """When settings have no effect.

    Attributes:
        keys: The settings; one that ends with a dot stands for all that begin so.
        is_idle: Whether they have none.
        where: Why, as the end of "without effect ...".
        advice: What to do.
        switch: The setting that decides. A user who gives it as well has turned the others off.
    """

    keys: tuple[str, ...]
    is_idle: Callable[[Config], bool]
    where: str
    advice: str
    switch: str = ""


def _has_none_of(prefixes: tuple[str, ...], config: Config) -> bool:
    return not any(name.startswith(prefixes) for name in config.env.names)


def _leaves_no_match_to_guests(config: Config) -> bool:
    population = config.population
    has_banks, share = population.snapshots > 1, population.guest_share
    return bool(_guests_anywhere(config)) and has_banks and population.past == 1 and share > 0


def _guests_anywhere(config: Config) -> list[str]:
    """Guests without agents of their own, which they would play in all matches."""
    return [name for name, _ in config.population.named_guests if patterns_of(config.policy, name) is None]


def _is_tracked_here_alone(config: Config) -> bool:
    return set(config.tracking.names) <= {TENSORBOARD}


def _none_has(config: Config, **settings: object) -> bool:
    """Whether no policy learns with these settings of PPO; a user's own algorithm may read them all."""
    policies = [policy.algorithm for policy in config.policies]
    return all(
        isinstance(algorithm, OnPolicyConfig)
        and algorithm.algorithm == "ppo"
        and any(getattr(algorithm, name) != value for name, value in settings.items())
        for algorithm in policies
    )


def _none_off_policy_has(config: Config, **settings: object) -> bool:
    """Likewise of off-policy algorithms."""
    algorithms = [policy.algorithm for policy in config.policies]
    return all(
        isinstance(algorithm, OffPolicyConfig)
        and not isinstance(algorithm, OwnOffPolicyConfig)
        and any(getattr(algorithm, name, value) != value for name, value in settings.items())
        for algorithm in algorithms
    )


def _none_reads(algorithms: tuple[str, ...], config: Config) -> bool:
    """Whether all policies learn with built-in off-policy algorithms, and none with one of these."""
    return all(
        isinstance(policy.algorithm, OffPolicyConfig)
        and not isinstance(policy.algorithm, OwnOffPolicyConfig)
        and policy.algorithm.algorithm not in algorithms
        and policy.model.encoder in BUILT_IN_ENCODERS
        for policy in config.policies
    )


def _is_without_core(policy: Config) -> bool:
    """Whether the network has no recurrent core; a model or an encoder of the user's may have its own use for one."""
    model = policy.model
    names = {model.model, model.encoder, *model.entry_encoders.values()}
    return model.core == "none" and names <= {ACTOR_CRITIC, *BUILT_IN_ENCODERS}


_RULES: tuple[_Idle, ...] = (
    _Idle(
        ("learner.gae_lambda",),
        partial(_none_has, advantage="gae"),
        "with learner.advantage='vtrace', IMPALA's",
        "use learner.vtrace_lambda, or learner.advantage='gae'",
        "learner.advantage",
    ),
    _Idle(
        ("learner.vtrace_rho", "learner.vtrace_c", "learner.vtrace_lambda"),
        partial(_none_has, advantage="vtrace"),
        "with learner.advantage='gae'",
        "use learner.gae_lambda, or learner.advantage='vtrace'",
        "learner.advantage",
    ),
    _Idle(
        ("learner.clip_range", "learner.clip_schedule"),
        lambda config: _none_has(config, clip_kind="reciprocal") and _none_has(config, clip_kind="symmetric"),
        "with learner.clip_kind='none', IMPALA's",
        "use learner.clip_kind='reciprocal'",
        "learner.clip_kind",
    ),
    _Idle(
        ("model.head_sizes",),
        partial(_none_reads, ("dqn",)),
        "with DDPG, TD3 and SAC",
        "use model.mlp_sizes",
    ),
    _Idle(
        ("model.initial_log_std", "model.state_dependent_std"),
        partial(_none_reads, ()),
        "with off-policy algorithms",
        "leave them out; SAC's standard deviation always depends on the state, within model.log_std_bounds",
    ),
    _Idle(
        ("model.log_std_bounds",),
        partial(_none_reads, ("sac",)),
        "with DQN, DDPG and TD3, whose actions have no distribution",
        "leave it out",
    ),
    _Idle(
        ("model.core_size",),
        lambda config: all(map(_is_without_core, config.policies)),
        "where there is no recurrent core",
        "use model.core='gru' or 'lstm'",
        "model.core",
    ),
    _Idle(
        tuple(f"tracking.{name}" for name in _FOR_SERVICES),
        _is_tracked_here_alone,
        "with TensorBoard, which is the only tracker",
        "name another one (tracker, --tracker tensorboard,wandb)",
        "tracker",
    ),
    _Idle(
        ("pbt.",),
        lambda config: not config.population.pbt,
        "where the policies are no population",
        "use population.pbt=True (--pbt)",
        "population.pbt",
    ),
    _Idle(
        ("pbt.mutation_rate",),
        lambda config: config.population.pbt and config.pbt.explore == "pb2",
        "with pbt.explore='pb2', which chooses the numbers of policies that are replaced",
        "use pbt.explore='mutate'",
    ),
    _Idle(
        ("pbt.share",),
        lambda config: config.population.pbt and config.pbt.rule == "half",
        "with pbt.rule='half'",
        "use pbt.rule='truncation'",
    ),
    _Idle(
        ("task_share", "model.observe_task"),
        lambda config: not config.env.tasks,
        "with a single task",
        "name several (--tasks A,B)",
    ),
    _Idle(
        ("task_share",),
        lambda config: config.in_replay,
        "with off-policy algorithms, whose replay holds the steps of all tasks",
        "use an on-policy algorithm",
    ),
    _Idle(
        ("population.rating",),
        lambda config: (
            len(config.population.names) == 1 and not config.population.guests and not config.population.snapshots
        ),
        "with one policy that meets no other player",
        "give several policies, past selves or guests",
    ),
    _Idle(
        (
            *("population.snapshot_every", "population.snapshot_win_rate", "population.keep", "population.past"),
            "population.matchmaking",
        ),
        lambda config: not config.population.snapshots,
        "where there are no past selves",
        "give places for them (population.snapshots)",
        "population.snapshots",
    ),
    # Saved runs with one place still load and resume, because only what a user gives is checked.
    _Idle(
        ("population.snapshots",),
        lambda config: config.population.snapshots == 1,
        "with a single place, because one is kept free for the next snapshot, and no past self would be met",
        "use 0 or at least 2 places",
    ),
    _Idle(
        ("population.guest_share",),
        lambda config: not config.population.guests,
        "where there are no guests",
        "name some (population.guests)",
        "population.guests",
    ),
    _Idle(
        ("population.guest_share",),
        lambda config: bool(config.population.guests) and not _guests_anywhere(config),
        "where all guests have agents of their own, which they play in all matches",
        "leave out policy.NAME.agents of one",
    ),
    _Idle(
        ("population.guests", "population.guest_share", "population.past"),
        _leaves_no_match_to_guests,
        "with population.past=1, because guests play in the matches without a past self",
        "use a smaller population.past, or population.guest_share=0",
    ),
    _Idle(
        (
            *("replay.alpha", "replay.beta", "replay.beta_end", "replay.epsilon", "replay.weights"),
            "replay.max_priority_decay",
        ),
        lambda config: config.in_replay and config.replay.priorities == "uniform",
        "with replay.priorities='uniform'",
        "use replay.priorities='proportional'",
        "replay.priorities",
    ),
    _Idle(
        (
            "off_policy.epsilon_start",
            "off_policy.epsilon_end",
            "off_policy.epsilon_fraction",
            "off_policy.epsilon_steps",
        ),
        partial(_none_off_policy_has, epsilon_kind="schedule"),
        "with off_policy.epsilon_kind='ladder'",
        "use off_policy.ladder_epsilon, or off_policy.epsilon_kind='schedule'",
        "off_policy.epsilon_kind",
    ),
    _Idle(
        ("off_policy.ladder_epsilon", "off_policy.ladder_alpha"),
        partial(_none_off_policy_has, epsilon_kind="ladder"),
        "with off_policy.epsilon_kind='schedule'",
        "use off_policy.epsilon_kind='ladder'",
        "off_policy.epsilon_kind",
    ),
    _Idle(
        ("off_policy.epsilon_fraction",),
        partial(_none_off_policy_has, epsilon_steps=None),
        "beside off_policy.epsilon_steps",
        "give the steps, or off_policy.epsilon_steps=none",
        "off_policy.epsilon_steps",
    ),
    _Idle(
        ("off_policy.ou_theta", "off_policy.ou_dt"),
        partial(_none_off_policy_has, noise_kind="ou"),
        "with another noise than an Ornstein-Uhlenbeck process",
        "use off_policy.noise_kind='ou'",
        "off_policy.noise_kind",
    ),
    _Idle(
        ("off_policy.initial_temperature", "off_policy.target_entropy", "off_policy.temperature_learning_rate"),
        partial(_none_off_policy_has, temperature="auto"),
        "with a temperature that is not learned",
        "use off_policy.temperature='auto'",
        "off_policy.temperature",
    ),
    _Idle(
        ("inference.groups_per_batch", "checkpoint.save_environments"),
        lambda config: not config.in_lockstep,
        "outside of lockstep",
        "use regime='lockstep'",
        "regime",
    ),
)
# Of runs that no callback evaluates.
_OF_EVALUATIONS = _Idle(
    ("eval_against", "eval_episodes", "eval_video"),
    lambda config: config.eval_every is None,
    "where nothing is evaluated",
    "give the agent steps between two (eval_every, --eval-every)",
    "eval_every",
)
_RULES += tuple(
    _Idle(
        (f"env.{family}.",),
        partial(_has_none_of, prefixes),
        f"for environments that are not {', '.join(f'{prefix}...' for prefix in prefixes)}",
        "give the environment's own arguments as env.kwargs.NAME",
    )
    for family, prefixes in (
        ("atari", ("atari/", "pettingzoo/atari/")),
        ("vizdoom", ("vizdoom/",)),
        ("dmlab", ("dmlab/",)),
    )
)
# What a setting may have been taken for.
_MISTAKEN = {
    "replay.alpha": "SAC's is off_policy.temperature",
    "replay.epsilon": "that of exploration is off_policy.epsilon_start and off_policy.epsilon_end, Adam's is "
    "learner.adam_eps",
}


def check_idle(given: Collection[str], config: Config) -> None:
    """Refuse settings without effect.

    Args:
        given: Full keys that the user gave; presets may bring others.
        config: The configuration with all of them.

    Raises:
        ConfigError: Which, and what to do.
    """
    _check(_RULES, given, config)


def check_evaluated(given: Collection[str], config: Config) -> None:
    """Refuse settings of evaluations where there are none; arguments and errors as of :func:`check_idle`."""
    _check((_OF_EVALUATIONS,), given, config)


def _check(rules: Sequence[_Idle], given: Collection[str], config: Config) -> None:
    for rule in rules:
        idle = sorted(key for key in given if any(_stands_for(name, key) for name in rule.keys))
        if idle and rule.switch not in given and rule.is_idle(config):
            hints = "".join(f"; {_MISTAKEN[key]}" for key in idle if key in _MISTAKEN)
            raise ConfigError(f"{', '.join(idle)}: without effect {rule.where}; {rule.advice}, or omit it{hints}.")


def _stands_for(name: str, key: str) -> bool:
    return key.startswith(name) if name.endswith(".") else key == name

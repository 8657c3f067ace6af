"""The configuration of a new run: a preset's, an algorithm's and the user's settings, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast

from rollmill.learning.config import FixedSchedule
from rollmill.settings.config import Config
from rollmill.settings.idle import check_idle
from rollmill.settings.option_values import coerce
from rollmill.settings.options import apply, flatten, full_keys, named_settings
from rollmill.settings.presets import resolve
from rollmill.settings.presets.by_algorithm import (
    algorithm_overrides,
    lockstep_overrides,
    pbt_overrides,
    protocol_overrides,
    with_policies_algorithms,
)
from rollmill.settings.presets.off_policy import off_policy_overrides
from rollmill.settings.presets.tasks import fitted, name_for_settings, rewards_without_popart
from rollmill.settings.value_checks import ConfigError

# Settings whose values decide which others are taken.
_NAMES: dict[str, object] = {
    "regime": Literal["async", "lockstep", "replay"],
    "off_policy.algorithm": Literal["dqn", "ddpg", "td3", "sac"] | str,
    "population.pbt": bool,
}


def new_config(
    preset: str,
    overrides: Mapping[str, object] | None = None,
    *,
    algo: str | None = None,
    protocol: str | None = None,
) -> Config:
    """Make the configuration of a preset; arguments and errors as in :func:`rollmill.make_config`."""
    chosen = resolve(preset)
    # Tasks come with the preset's number of environments, which they must divide.
    tasks = {"env.tasks": chosen.env.tasks} if chosen.env.tasks else {}
    alone = Config(env=replace(chosen.env, tasks=()), preset=chosen.name)
    config = apply(alone, {**chosen.overrides, **tasks})
    settings_of = name_for_settings(chosen)

    def fit(settings: Mapping[str, object]) -> Mapping[str, object]:
        return fitted(settings, flatten(config), len(chosen.env.tasks)) if chosen.env.tasks else settings

    replaced: dict[str, object] = {}
    if algo is not None:
        of_preset = flatten(config)
        config = apply(config, fit(algorithm_overrides(algo, settings_of)))
        present = flatten(config)
        replaced = {key: value for key, value in of_preset.items() if key not in present or present[key] != value}
    if protocol is not None:
        config = apply(config, protocol_overrides(protocol, settings_of))
    given = full_keys(config, overrides or {})
    given = with_policies_algorithms(given, settings_of, in_replay=config.in_replay, replaced=replaced)
    for key in _NAMES.keys() & given.keys():
        given[key] = coerce(given[key], _NAMES[key], key, text=isinstance(given[key], str))
    named = named_settings(config, given)
    if algo is not None:
        _check_algorithm(named, config, algo)
    if named.get("regime", config.regime.name) == "replay" and not config.in_replay:
        config = apply(config, fit(off_policy_overrides(_off_policy_algorithm(named), settings_of)))
    if config.in_replay and chosen.env.tasks:
        config = apply(config, rewards_without_popart(resolve(chosen.env.tasks[0])))
    if named.get("population.pbt"):
        config = apply(config, pbt_overrides(in_replay=config.in_replay))
    if named.get("regime", config.regime.name) == "lockstep":
        # Read them without applying them: they may be inconsistent with the preset's batch, made for async.
        num_envs, rollout_length = (
            coerce(given.get(key, getattr(config, key)), int, key, text=isinstance(given.get(key), str))
            for key in ("num_envs", "rollout_length")
        )
        needed = lockstep_overrides(
            num_envs=cast("int", num_envs),
            rollout_length=cast("int", rollout_length),
            minibatch_size=config.minibatch_size,
        )
        given = {**needed, **given}
    config = apply(config, given)
    policies = len(config.population.names)
    if config.in_replay and config.num_envs < policies and "num_envs" not in given and not tasks:
        config = replace(config, num_envs=policies)  # The presets' one environment is for one policy.
    check_effects(named, config)
    return config


def _check_algorithm(given: Mapping[str, object], config: Config, algo: str) -> None:
    """Refuse settings that name another algorithm, or another regime, than ``algo``."""
    own = config.algorithm_name
    if given.get("off_policy.algorithm", own) != own:
        raise ConfigError(
            f"off_policy.algorithm={given['off_policy.algorithm']!r} with algo={algo!r}, which brings settings of its "
            "own: give only one of the two."
        )
    if config.in_replay and given.get("regime", "replay") != "replay":
        raise ConfigError(
            f"regime={given['regime']!r} with algo={algo!r}: off-policy algorithms learn from a replay; use "
            "regime='replay', or omit algo."
        )


def _off_policy_algorithm(given: Mapping[str, object]) -> str:
    """Return the algorithm that the replay regime is to run."""
    wanted = given.get("off_policy.algorithm")
    if wanted is None:
        raise ConfigError(
            "regime='replay' without an algorithm: give off_policy.algorithm (or, to train, algo), one of dqn, ddpg, "
            "td3 and sac."
        )
    return str(wanted)


def check_effects(given: Mapping[str, object], config: Config) -> None:
    """Refuse settings, by full key, that have no effect together with the others."""
    idle: dict[str, list[str]] = {}  # Key of a learning rate -> schedules that have others.
    for name, policy in zip(config.population.names, config.policies, strict=True):
        schedule = policy.optimiser.schedule
        points = schedule.points if isinstance(schedule, FixedSchedule) else ()
        own = [f"policy.{name}.{key}" for key in ("learner.learning_rate", "learning_rate")]
        key = next((key for key in own if key in given), "learner.learning_rate")
        has_effect = not points or points[0][1] == policy.optimiser.learning_rate
        idle.setdefault(key, []).append("" if has_effect else schedule.name)
    for key, schedules in idle.items():
        if key in given and all(schedules):
            raise ConfigError(
                f"{key}={given[key]} with learner.schedule={schedules[0]!r}, whose points are learning rates: omit "
                "learning_rate, or give that of the first point."
            )
    check_idle(given, config)

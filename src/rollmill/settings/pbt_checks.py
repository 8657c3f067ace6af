"""Checks of the settings of a run with population-based training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmill.learning.config import FixedSchedule
from rollmill.learning.live_numbers import REWARD_WEIGHT
from rollmill.pbt.config import AUTO_MUTATED
from rollmill.settings.live_settings import live_numbers
from rollmill.settings.value_checks import ConfigError

if TYPE_CHECKING:
    from rollmill.settings.config import Config

_SCHEDULES = {"entropy_coef": "entropy_schedule", "clip_range": "clip_schedule"}


def check_pbt(config: Config) -> None:
    """Refuse a population that cannot be compared, replaced or mutated.

    Raises:
        ConfigError: Which setting, and what to do.
    """
    names, policies = config.population.names, config.policies
    if len(names) < 2:
        raise ConfigError("population.pbt=True with one policy: give several, for example --policies 4.")
    for name, policy in zip(names, policies, strict=True):
        if (policy.model, policy.algorithm_name, policy.optimiser.method.kind) != (
            policies[0].model,
            policies[0].algorithm_name,
            policies[0].optimiser.method.kind,
        ):
            raise ConfigError(
                f"population.pbt=True, but policies {names[0]} and {name} have other networks, algorithms or "
                "optimisers: weights could not go from one to the other. Give them the same."
            )
        _check_numbers(config, policy, name)


def mutated_numbers(config: Config) -> tuple[str, ...]:
    """Return the names of the numbers that are mutated."""
    if config.pbt.mutate != "auto":
        return config.pbt.mutate
    known = live_numbers(config.policies[0])
    return tuple(name for name in known if name in AUTO_MUTATED or name.startswith(REWARD_WEIGHT))


def _check_numbers(config: Config, policy: Config, name: str) -> None:
    """Check that every number that is to be mutated exists and has no schedule."""
    known, mutate = live_numbers(policy), mutated_numbers(config)
    for number in mutate:
        if number not in known:
            raise ConfigError(
                f"pbt.mutate={','.join(mutate)}: policy {name} has no {number} that may change during a run; it has "
                f"{', '.join(known)}."
            )
        if known[number] is None and number == "max_grad_norm":
            raise ConfigError("pbt.mutate has max_grad_norm, but learner.max_grad_norm is None: give it a value.")
    schedule = policy.optimiser.schedule
    if "learning_rate" in mutate and schedule != FixedSchedule():
        raise ConfigError(
            f"pbt.mutate has learning_rate, but learner.schedule={schedule.name!r} changes it, too: use "
            "learner.schedule=constant, or mutate other numbers."
        )
    for number, key in _SCHEDULES.items():
        if number in mutate and getattr(policy.algorithm, key, "constant") != "constant":
            raise ConfigError(
                f"pbt.mutate has {number}, but learner.{key} changes it, too: use learner.{key}=constant, or mutate "
                "other numbers."
            )

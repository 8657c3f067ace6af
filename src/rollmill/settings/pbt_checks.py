"""Checks of the settings of a run with population-based training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.learning.config import FixedSchedule
from rollmill.learning.live_numbers import REWARD_WEIGHT
from rollmill.pbt.config import AUTO_MUTATED, SWITCHES
from rollmill.pbt.mutation import factored
from rollmill.settings.live_settings import SCHEDULES, live_numbers, upper_end
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.agent_roles import patterns_of

if TYPE_CHECKING:
    from rollmill.settings.config import Config


def check_pbt(config: Config) -> None:
    """Refuse a population that cannot be compared, replaced or mutated.

    Raises:
        ConfigError: Which setting, and what to do.
    """
    names, policies = config.population.names, config.policies
    if len(names) < 2:
        raise ConfigError("population.pbt=True with one policy: give several, for example --policies 4.")
    if config.pbt.every == "auto" and config.max_seconds is not None:
        raise ConfigError(
            f"pbt.every='auto' counts on total_steps, but max_seconds={config.max_seconds:g} may end the run long "
            "before: give pbt.every, in agent steps of a policy."
        )
    mutate, switches = mutated_numbers(config), _switches(config)
    roles = [patterns_of(config.policy, name) for name in names]
    for name, policy, role in zip(names, policies, roles, strict=True):
        if role != roles[0]:
            raise ConfigError(
                f"population.pbt=True, but policies {names[0]} and {name} play other agents (policy.NAME.agents): "
                "their results cannot be compared. Let all policies play all agents."
            )
        if _kind(policy) != _kind(policies[0]):
            raise ConfigError(
                f"population.pbt=True, but policies {names[0]} and {name} have other networks, algorithms or "
                "optimisers: weights could not go from one to the other. Give them the same; they may begin with other "
                f"values of {', '.join(live_numbers(policy))}."
            )
        _check_numbers(policy, name, mutate, switches)
    for number in mutate if config.pbt.explore == "pb2" else ():
        starts = [start for policy in policies if (start := live_numbers(policy)[number]) is not None]
        if number not in config.pbt.limits and starts and min(starts) < 0 < max(starts):
            raise ConfigError(
                f"pbt.explore='pb2' with {number}, but policies begin with values from {min(starts):g} to "
                f"{max(starts):g}: give the range to look in, as pbt.limits.{number}={min(starts):g},{max(starts):g}."
            )
    for number in config.pbt.limits:
        if number not in mutate:
            raise ConfigError(
                f"pbt.limits.{number}: this run mutates {', '.join(mutate)}; add the number to pbt.mutate, or leave "
                "its limits out."
            )
        most = min(upper_end(policy, number) for policy in policies)
        if config.pbt.limits_of(number)[1] > most:
            raise ConfigError(f"pbt.limits.{number}={config.pbt.limits[number]!r}: give at most {most}.")
        low, high = config.pbt.limits_of(number)
        for name, policy in zip(names, policies, strict=True):
            start = live_numbers(policy)[number]
            if start is not None and not low <= start <= high:
                raise ConfigError(
                    f"pbt.limits.{number}={config.pbt.limits[number]!r}: policy {name} begins with {start:g}, which is "
                    "outside: give other limits, or another value at the start."
                )


def _kind(policy: Config) -> object:
    """Return what must be the same for weights and optimisers to go from one policy to the other."""
    algorithm = policy.algorithm
    changing = {name for name in live_numbers(policy) if hasattr(algorithm, name)}
    if isinstance(algorithm, OnPolicyConfig):
        changing |= {"reward_weights"}
    settings = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if f.name not in changing}
    return policy.model, type(algorithm), settings, policy.optimiser.method.kind, policy.optimiser.freeze


def mutated_numbers(config: Config) -> tuple[str, ...]:
    """Return the names of the numbers that are mutated."""
    if config.pbt.mutate != "auto":
        return config.pbt.mutate
    found = [(name, value) for policy in config.policies for name, value in live_numbers(policy).items()]
    names = dict.fromkeys(name for name, _ in found if name in AUTO_MUTATED or name.startswith(REWARD_WEIGHT))
    changing = {name for name, value in found if not _is_stuck(name, value)} - _switches(config)
    return tuple(name for name in names if name in changing)


def _switches(config: Config) -> set[str]:
    """Return the weights of reward terms that are either 1 or 0."""
    families = [name.partition("/")[0] for name in config.env.names]
    return {f"{REWARD_WEIGHT}{term}" for family in families for term in SWITCHES.get(family, ())}


def _is_stuck(number: str, value: float | None) -> bool:
    """Whether no factor changes the value."""
    return value is not None and factored(number, value) == 0


def _check_numbers(policy: Config, name: str, mutate: Sequence[str], switches: Collection[str]) -> None:
    """Check that every number that is to be mutated exists and has no schedule."""
    known = live_numbers(policy)
    for number in mutate:
        if number not in known:
            raise ConfigError(
                f"pbt.mutate={','.join(mutate)}: policy {name} has no {number} that may change during a run; it has "
                f"{', '.join(known)}."
            )
        if number in switches:
            raise ConfigError(
                f"pbt.mutate has {number}, which switches something on (1) or off (0): with another weight the reward "
                "makes no sense. Leave it out."
            )
        if known[number] is None and number == "max_grad_norm":
            raise ConfigError("pbt.mutate has max_grad_norm, but learner.max_grad_norm is None: give it a value.")
        if _is_stuck(number, value := known[number]):
            whose = "whose distance from 1" if value else "which"
            raise ConfigError(
                f"pbt.mutate{' (auto)' if policy.pbt.mutate == 'auto' else ''} has {number}, but policy {name} begins "
                f"with {value:g}, {whose} no factor changes: give it another value, or mutate other numbers."
            )
    schedule = policy.optimiser.schedule
    if "learning_rate" in mutate and schedule != FixedSchedule():
        raise ConfigError(
            f"pbt.mutate has learning_rate, but learner.schedule={schedule.name!r} changes it, too: use "
            "learner.schedule=constant, or mutate other numbers."
        )
    for number, key in SCHEDULES.items():
        if number in mutate and getattr(policy.algorithm, key, "constant") != "constant":
            raise ConfigError(
                f"pbt.mutate has {number}, but learner.{key} changes it, too: use learner.{key}=constant, or mutate "
                "other numbers."
            )

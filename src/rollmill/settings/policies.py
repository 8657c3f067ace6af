"""The settings of one policy of several: those of the run, with the policy's own values in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rollmill.settings.options import apply
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.agent_roles import AGENTS, own_values, patterns_of

if TYPE_CHECKING:
    from rollmill.settings.config import Config

LOAD = "load"

# Only `apply` needs to know the class.
C = TypeVar("C", bound="Config")


def config_of_policy(config: C, name: str) -> C:
    """Return a policy's settings, as if it were the only one of its run.

    Raises:
        ConfigError: An unknown setting, a value that is not allowed, or a setting that all policies share.
    """
    own = {key: value for key, value in own_values(config.policy, name).items() if key not in (AGENTS, LOAD)}
    alone = replace(config, policy={}, population=replace(config.population, policies=1, guests=(), pbt=False))
    try:
        changed = apply(alone, own)
    except ValueError as error:
        raise ConfigError(f"policy.{name}: {error}") from error
    # Both have the same regime, and so algorithms of the same kind, which the type checker cannot know.
    regime = replace(changed.regime, algorithm=alone.regime.algorithm)  # type: ignore[arg-type]
    if replace(changed, model=alone.model, optimiser=alone.optimiser, regime=regime) != alone:
        raise ConfigError(
            f"policy.{name}: {', '.join(own)}: a policy has its own network, algorithm and optimiser (model.*, "
            "learner.*, off_policy.*); everything else, the regime, the replay and the compute settings included, is "
            f"that of the run: set it without 'policy.{name}'."
        )
    return changed


def with_own_settings(config: C) -> C:
    """Return settings in which those of a run's only policy are the run's own.

    All that reads a run's directory then finds them, as it finds those of several policies in their folders.
    """
    if len(config.population.names) > 1 or not config.policy:
        return config
    (name,) = config.population.names
    own = config_of_policy(config, name)
    changed = {f"{name}.{key}" for key in own_values(config.policy, name)} - {f"{name}.{AGENTS}", f"{name}.{LOAD}"}
    kept = {key: value for key, value in config.policy.items() if key not in changed}
    return replace(config, model=own.model, optimiser=own.optimiser, regime=own.regime, policy=kept)


def check_policies(config: Config) -> None:
    """Refuse settings of unknown policies, and those that one policy cannot have alone.

    Raises:
        ConfigError: Which setting, and what to do.
    """
    names = config.population.names
    if (config.init_skip or config.init_optimiser) and all(source_of(config, name) is None for name in names):
        raise ConfigError("init_skip and init_optimiser need weights to begin with: give init_from.")
    if config.init_skip and config.init_optimiser:
        raise ConfigError(
            f"init_skip={','.join(config.init_skip)} with init_optimiser: the moments would not fit parts with new "
            "weights; leave one of them out."
        )
    guests = [name for name, _ in config.population.named_guests]
    for key in config.policy:
        name, _, rest = key.partition(".")
        if name in guests and rest != AGENTS:
            raise ConfigError(
                f"policy.{key}: {name} is a guest, which does not learn: it takes policy.{name}.agents only."
            )
        if name not in (*names, *guests):
            known = ", ".join((*names, *guests))
            raise ConfigError(f"policy.{key}: this run has the policies {known} (population.policies).")
        if not rest:
            raise ConfigError(f"policy.{key}={config.policy[key]!r}: give single settings (policy.{name}.KEY).")
    for name in (*names, *guests) if config.policy else ():
        patterns_of(config.policy, name)
    for name in names if config.policy else ():
        source_of(config, name)
        own = config_of_policy(config, name)
        if config.in_replay and config.env.tasks and own.model.observe_task != config.model.observe_task:
            raise ConfigError(
                f"policy.{name}.model.observe_task={own.model.observe_task}, and {config.model.observe_task} for the "
                "run: off-policy networks see all entries of an observation, so all policies see the task, or none: "
                "set model.observe_task for the run alone."
            )
        if sorted(own.reward_terms) != sorted(config.reward_terms):
            raise ConfigError(
                f"policy.{name}: it has weights for the reward terms {', '.join(own.reward_terms)}, the run for "
                f"{', '.join(config.reward_terms) or 'none'}: give each term a weight in learner.reward_weights, too."
            )


def source_of(config: Config, name: str) -> str | None:
    """Return the run directory or checkpoint file whose weights a policy starts with; None for new ones."""
    given = own_values(config.policy, name).get(LOAD)
    if given is None:
        return config.init_from
    if not isinstance(given, str) or not given:
        raise ConfigError(f"policy.{name}.load={given!r}: give a run directory or a checkpoint file.")
    return given

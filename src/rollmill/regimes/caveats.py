"""Warnings about an environment before a run, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from rollmill.settings.config import Config
from rollmill.specs import ArraySpec, BoxHead, EnvSpec

_LEAST_SIDE = 8  # of an image
_SCALED = 1.5  # float images up to this number count as scaled to 0..1
# Of a vector. Acrobot's velocities (up to 28) are learned from as they are, pressures in pascals are not.
_LARGE_NUMBER = 100.0
_NO_BOUND = 1e9  # Larger ones are those of a dtype.
# Half the distance of an action's bounds, in standard deviations of the initial policy. SB3's and CleanRL's deviation
# of one suits -1..1; within these limits, Pendulum (-2..2) and CarRacing (0..1) still learn.
_NARROW = 0.2
_WIDE = 10.0
# Rows that a policy plays in all environments; docs/populations.md has what few of them cost.
_FEW_ROWS = 8
_ENOUGH_ROWS = 16


def caveats_of(
    config: Config, spec: EnvSpec, unread_options: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> list[str]:
    """Return warnings about an environment and settings that do not suit each other.

    Args:
        config: The resolved configuration.
        spec: The environment.
        unread_options: As in :class:`~rollmill.regimes.setup.Probed`.
    """
    return [
        *_unrepeatable(config, spec),
        *_unscaled_pictures(config, spec),
        *_unscaled_numbers(config, spec),
        *_unscaled_actions(config, spec),
        *_long_turns(config, spec),
        *_few_rows(config, spec),
        *_own(spec),
        *_unread_options(unread_options),
    ]


def _unrepeatable(config: Config, spec: EnvSpec) -> list[str]:
    if not config.in_lockstep or spec.repeats is not False:
        return []
    return [
        f"{spec.name} does not repeat: two episodes with the same seed and the same actions show different things. "
        "This run will not be reproducible. Draw all randomness from the generator of reset(seed=...), one for each "
        "environment, and keep it where a reset gets no seed (gymnasium's self.np_random does)."
    ]


def _unscaled_pictures(config: Config, spec: EnvSpec) -> list[str]:
    """Warn about float images with bounds outside of 0..1; uint8 images are scaled automatically."""
    if config.model.normalise_observations:
        return []
    return [
        f"observation {name!r} of {spec.name} looks like an image of {item.dtype} with numbers up to {item.high:g}: "
        "floats are not scaled; use uint8, which is divided by 255 and "
        "takes a quarter of the memory, or scale it to 0..1"
        for name, item in spec.observation.items()
        if item.dtype.startswith("float")
        and len(item.shape) == 3
        and min(sorted(item.shape)[1:]) >= _LEAST_SIDE
        and item.high is not None
        and item.high > _SCALED
    ]


def _unscaled_numbers(config: Config, spec: EnvSpec) -> list[str]:
    """Warn about large numbers where no normaliser scales them: off-policy, or where it was switched off."""
    if config.model.normalise_observations:
        return []
    how = (
        "a replay's networks have no normaliser"
        if config.in_replay
        else "nothing scales it (model.normalise_observations=false)"
    )
    return [
        f"observation {name!r} of {spec.name} has numbers up to {largest:g}: {how}, and little is learned from numbers "
        "far from -1 to 1. Divide it by its usual size where the environment is made, or in a wrapper (env.wrappers; "
        "RescaleObservation(min_obs=-1, max_obs=1) where the space has bounds)"
        for name, item in spec.observation.items()
        if len(item.shape) < 3
        and item.dtype != "uint8"
        and not (item.is_sound or item.choices)
        and (largest := _largest(item)) > _LARGE_NUMBER
    ]


def _largest(item: ArraySpec) -> float:
    """The largest magnitude of an entry: of its bounds, or else of what was seen."""
    if item.low is None or item.high is None or (largest := max(abs(item.low), abs(item.high))) > _NO_BOUND:
        return item.seen or 0.0
    return largest


def _unscaled_actions(config: Config, spec: EnvSpec) -> list[str]:
    """Warn about action bounds of another scale than the initial policy's standard deviation."""
    if config.box_actions != "clip" or config.model.scales_actions(spec.action):
        return []
    deviation = math.exp(config.model.initial_log_std)
    for head in spec.action.heads:
        if not isinstance(head, BoxHead) or not head.is_bounded:
            continue
        for low, high in zip(head.low, head.high, strict=True):
            half = (high - low) / 2 / deviation
            if not half:  # both bounds are equal
                continue
            if _NARROW <= half <= _WIDE and low - deviation <= 0 <= high + deviation:
                continue
            return [
                f"an action of {spec.name} has the bounds {low:g} and {high:g}, but the initial policy draws numbers "
                f"around 0 with a standard deviation of {deviation:g} (model.initial_log_std): it explores little of "
                "this range. Set model.scale_actions=true, or let the "
                "environment take actions between -1 and 1 (gymnasium.wrappers.RescaleAction)"
            ]
    return []


def _long_turns(config: Config, spec: EnvSpec) -> list[str]:
    """Warn if transitions of agents that take turns may not lie in two slots of a replay."""
    if not (config.in_replay and spec.agents):
        return []
    needed = config.replay.n_step * len(spec.agents)
    if needed <= config.rollout_length:
        return []
    return [
        f"rollout_length={config.rollout_length} is short for replay.n_step={config.replay.n_step} and the "
        f"{len(spec.agents)} agents of {spec.name}: a transition spans at most two slots, so if the agents act one "
        f"after another, some of their turns are never learned from. Use a rollout_length of {needed} or more, or a "
        "smaller n_step"
    ]


def _few_rows(config: Config, spec: EnvSpec) -> list[str]:
    """Warn if there are so few environments for each policy that forward passes are inefficient."""
    policies, rows = len(config.population.names), config.num_envs * spec.rows_per_env
    if policies == 1 or config.in_replay or rows >= _FEW_ROWS * policies:
        return []
    enough = -(-_ENOUGH_ROWS * policies // spec.rows_per_env)
    enough += -enough % config.groups_multiple
    return [
        f"num_envs={config.num_envs} is few for {policies} policies: a forward pass for the {rows / policies:.1f} rows "
        f"of each takes nearly as long as one for {_ENOUGH_ROWS}. If the memory suffices, num_envs={enough} is faster"
    ]


def _own(spec: EnvSpec) -> list[str]:
    """What environments say themselves."""
    return [f"{task.name}: {text}" for task in spec.tasks or (spec,) for text in task.caveats]


def _unread_options(unread: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [
        f"model.options.{name} was not read when the network was built, so it may have no effect; read were "
        f"{', '.join(read) or 'none'}"
        for name, read in unread.items()
    ]

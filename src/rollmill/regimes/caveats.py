"""What a user should know of an environment before a run: lines for people."""

from __future__ import annotations

import math

from rollmill.settings.config import Config
from rollmill.specs import BoxHead, EnvSpec

__all__ = ["caveats_of"]

_LEAST_SIDE = 8  # of a picture
_SCALED = 1.5  # largest number of a float picture that counts as one between 0 and 1
# Half the distance of an action's bounds, in standard deviations of the first policy. SB3's and CleanRL's one suits
# -1..1; between these, Pendulum (-2..2) and CarRacing (0..1) still learn with it.
_NARROW = 0.2
_WIDE = 10.0


def caveats_of(config: Config, spec: EnvSpec) -> list[str]:
    """What a lockstep run does not control, and pictures and actions whose numbers are used as they are."""
    return [*_unrepeatable(config, spec), *_unscaled_pictures(config, spec), *_unscaled_actions(config, spec)]


def _unrepeatable(config: Config, spec: EnvSpec) -> list[str]:
    if not config.in_lockstep or spec.repeats is not False:
        return []
    return [
        f"{spec.name} does not repeat: reset twice with the same seed and given the same actions, it showed different "
        "things. So this run will hardly give the same result again. Let all of its randomness come from "
        "reset(seed=...), and share none of it between environments."
    ]


def _unscaled_pictures(config: Config, spec: EnvSpec) -> list[str]:
    """Float arrays of a picture's shape whose bounds say that they are not between 0 and 1; uint8 is scaled by us."""
    if config.model.normalise_observations:
        return []
    return [
        f"observation {name!r} of {spec.name} looks like a picture of {item.dtype} with numbers up to {item.high:g}: "
        "floats are not scaled, so the network sees them as they are; give it as uint8, which is divided by 255 and "
        "takes a quarter of the memory, or scale it to 0..1"
        for name, item in spec.observation.items()
        if item.dtype.startswith("float")
        and len(item.shape) == 3
        and min(sorted(item.shape)[1:]) >= _LEAST_SIDE
        and item.high is not None
        and item.high > _SCALED
    ]


def _unscaled_actions(config: Config, spec: EnvSpec) -> list[str]:
    """A Gaussian policy draws in the units of the environment: bounds of another scale are hit at once, or never."""
    if config.box_actions != "clip" or config.model.scales_actions(spec.action):
        return []
    deviation = math.exp(config.model.initial_log_std)
    for head in spec.action.heads:
        if not isinstance(head, BoxHead) or not head.is_bounded:
            continue
        for low, high in zip(head.low, head.high, strict=True):
            half = (high - low) / 2 / deviation
            if not half:  # Nothing is to be chosen there.
                continue
            if _NARROW <= half <= _WIDE and low - deviation <= 0 <= high + deviation:
                continue
            return [
                f"an action of {spec.name} has the bounds {low:g} and {high:g}, but the first policy draws numbers "
                f"around 0 with a standard deviation of {deviation:g} (model.initial_log_std): it hardly explores what "
                "lies between them. model.scale_actions=true spreads its actions over the bounds; or let the "
                "environment take actions between -1 and 1 (gymnasium.wrappers.RescaleAction)"
            ]
    return []

"""What a user should know of an environment before a run: lines for people."""

from __future__ import annotations

from rollmill.config import Config
from rollmill.specs import EnvSpec

__all__ = ["caveats_of"]

_LEAST_SIDE = 8  # of a picture
_SCALED = 1.5  # largest number of a float picture that counts as one between 0 and 1


def caveats_of(config: Config, spec: EnvSpec) -> list[str]:
    """What a lockstep run does not control, and pictures whose numbers a network gets as they are."""
    return [*_unrepeatable(config, spec), *_unscaled_pictures(config, spec)]


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

"""Checks of observations passed to an agent; errors name the entry that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.envs.spaces import ACTION_MASK

_MOST_NAMED = 8


class ObservationError(ValueError):
    """An observation does not fit its space."""


def check_observation(space: spaces.Space[Any], observation: Any, rows: int | None, *, finite: bool = True) -> None:
    """Raise unless an observation, or a batch, has the entries, shapes and dtypes of its space.

    Entries that are not in the space and the action mask are ignored, as in training.

    Args:
        space: Space of one observation.
        observation: As returned by an environment.
        rows: The length of the first axis of every array; None for one observation without such an axis.
        finite: Whether NaN and infinity raise.

    Raises:
        ObservationError: Names the entry, what was given, and what is needed.
    """
    _check(space, observation, "", rows, finite)


def _check(space: spaces.Space[Any], value: Any, name: str, rows: int | None, finite: bool) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            raise ObservationError(f"{_entry(name)} is {type(value).__name__}; a dict is needed, with {_names(space)}")
        for key, each in space.spaces.items():
            if not name and key == ACTION_MASK:
                continue
            if key not in value:
                given = ", ".join(map(repr, list(value)[:_MOST_NAMED])) or "none"
                raise ObservationError(
                    f"{_entry(name)} has no entry {key!r}; entries given: {given}; needed: {_names(space)}"
                )
            _check(each, value[key], f"{name}/{key}" if name else str(key), rows, finite)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            found = f"{len(value)} entries" if isinstance(value, tuple | list) else type(value).__name__
            raise ObservationError(f"{_entry(name)} is {found}; a tuple of {len(space.spaces)} is needed")
        for i, (each, part) in enumerate(zip(space.spaces, value, strict=True)):
            _check(each, part, f"{name}/{i}" if name else str(i), rows, finite)
    else:
        _check_array(space, value, name, rows, finite)


def _check_array(space: spaces.Space[Any], value: Any, name: str, rows: int | None, finite: bool) -> None:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors with gradients or on a device
        raise ObservationError(f"{_entry(name)} cannot be read as an array ({error}); give a NumPy array") from error
    batch = () if rows is None else (rows,)
    shape = (*batch, *(space.shape or ()))
    # A number and an array with one element are equivalent, as in training.
    alike = {(*batch, *one) for one in ((), (1,))} if shape[len(batch) :] in ((), (1,)) else set()
    if array.shape != shape and array.shape not in alike:
        raise ObservationError(f"{_entry(name)} has shape {array.shape}; {shape} is needed ({space})")
    kind = array.dtype.kind
    if kind not in "biuf":
        raise ObservationError(f"{_entry(name)} has dtype {array.dtype}; numbers are needed ({space})")
    if finite and kind == "f" and not np.isfinite(array).all():
        raise ObservationError(f"{_entry(name)} holds NaN or infinity; give finite numbers")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        is_choice = (array >= space.start) & (array < space.start + count) & (array == np.floor(array))
        if not is_choice.all():
            raise ObservationError(f"{_entry(name)} holds {array[~is_choice].flat[0]}, which is no value of {space}")


def _entry(name: str) -> str:
    return f"entry {name!r}" if name else "the observation"


def _names(space: spaces.Dict) -> str:
    names = [repr(key) for key in space.spaces]
    return ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED))

"""Spaces as plain data, stored in a run so that its agent can act without the environment's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

_FORMAT = 1
# Bounds that differ between elements are written one by one, up to this number, to keep the file small.
_MOST_NUMBERS = 1_000_000


class SavedSpaces(NamedTuple):
    """The spaces of one environment.

    Attributes:
        observation: Its observation space.
        action: Its action space.
        has_action_mask: Whether it provides masks of allowed actions.
        tasks: Of several tasks: name -> the spaces of each.
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    has_action_mask: bool = False
    tasks: Mapping[str, SavedSpaces] = MappingProxyType({})


class _NoData(Exception):  # noqa: N818 - caught in this module; not an error
    """A space cannot be written as plain data."""


def encode_spaces(
    observation: spaces.Space[Any], action: spaces.Space[Any], *, has_action_mask: bool = False
) -> dict[str, Any] | None:
    """Encode both spaces, and whether there are action masks, as JSON data.

    Returns:
        None if a space is or contains one of an unsupported kind.
    """
    try:
        return {
            "format": _FORMAT,
            "observation": _encode(observation),
            "action": _encode(action),
            "has_action_mask": has_action_mask,
        }
    except _NoData:
        return None


def decode_spaces(data: Any) -> SavedSpaces:
    """Decode the result of :func:`encode_spaces`.

    Raises:
        ValueError: The data are invalid.
    """
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']!r} instead of {_FORMAT}")
        has_mask = data.get("has_action_mask", False)
        tasks = {str(name): decode_spaces(own) for name, own in data.get("tasks", {}).items()}
        return SavedSpaces(_decode(data["observation"]), _decode(data["action"]), has_mask is True, tasks)
    except Exception as error:  # For damaged data, spaces may raise anything, including AssertionError.
        raise ValueError(f"these are not spaces ({type(error).__name__}: {error})") from error


def _encode(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        return {
            "kind": "box",
            "shape": list(space.shape),
            "dtype": str(np.dtype(space.dtype)),
            "low": _encode_numbers(space.low),
            "high": _encode_numbers(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        kept = {"nvec": np.asarray(space.nvec).tolist(), "start": np.asarray(space.start).tolist()}
        return {"kind": "multi_discrete", "dtype": str(np.dtype(space.dtype)), **kept}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        if not all(isinstance(key, str) for key in space.spaces):
            raise _NoData
        return {"kind": "dict", "entries": [[key, _encode(each)] for key, each in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "entries": [_encode(each) for each in space.spaces]}
    raise _NoData


def _decode(data: Any) -> spaces.Space[Any]:
    kind = data["kind"]
    if kind == "box":
        shape, dtype = tuple(map(int, data["shape"])), np.dtype(str(data["dtype"]))
        if dtype.kind not in "biuf":
            raise ValueError(f"a Box of {dtype}")
        low, high = (_decode_numbers(data[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "discrete":
        return spaces.Discrete(int(data["n"]), start=int(data["start"]))
    if kind == "multi_discrete":
        dtype = np.dtype(str(data["dtype"]))
        nvec, start = np.array(data["nvec"], dtype), np.array(data["start"], dtype)
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if kind == "multi_binary":
        return spaces.MultiBinary(data["n"])
    if kind == "dict":
        return spaces.Dict([(str(key), _decode(each)) for key, each in data["entries"]])
    if kind == "tuple":
        return spaces.Tuple([_decode(each) for each in data["entries"]])
    raise ValueError(f"{kind!r} is not a kind of space")


def _encode_numbers(values: np.ndarray[Any, Any]) -> Any:
    """One number if all are equal, else a list; infinities are text, because JSON has none."""
    flat = values.ravel()
    if flat.size and bool((flat == flat[0]).all()):
        return _encode_number(flat[0].item())
    if flat.size > _MOST_NUMBERS:
        raise _NoData
    return [_encode_number(value) for value in flat.tolist()]


def _encode_number(value: float) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _decode_numbers(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if isinstance(data, list):
        return np.array([_decode_number(value) for value in data]).astype(dtype).reshape(shape)
    return np.full(shape, _decode_number(data)).astype(dtype)


def _decode_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value

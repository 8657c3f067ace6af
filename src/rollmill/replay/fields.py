"""The fields of a transition: names, shapes, dtypes, and the arrays that are given for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Name -> (shape of one transition's, dtype), or more of these: "a" with "b" in it is called "a/b".
FieldSpecs: TypeAlias = Mapping[str, "tuple[int | Sequence[int], DTypeLike] | FieldSpecs"]

_KINDS = "biuf"


class Field(NamedTuple):
    """One array of a transition.

    Attributes:
        name: Its name; names of nested fields are joined by slashes.
        shape: The shape for one transition.
        dtype: The dtype of its entries.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def buffer_format(self) -> str:
        """The dtype's name in Python's buffer protocol."""
        return memoryview(cast(Any, np.empty(0, self.dtype))).format


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name -> value, of nested mappings the innermost, with names joined by slashes."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is given as a name; give a string")
        parts = flattened(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
        if twice := flat.keys() & parts:
            raise ValueError(f"{sorted(twice)} are given twice, nested and by their whole names; give them once")
        flat |= parts
    return flat


def fields_of(specs: FieldSpecs) -> tuple[Field, ...]:
    """The fields, in the order in which they are given.

    Raises:
        ValueError: There is no field, or one lacks a shape or a numeric dtype.
    """
    if not isinstance(specs, Mapping):
        raise ValueError(f"fields is {specs!r}; give a mapping, such as {{'obs': ((8,), 'float32')}}")
    fields = []
    for name, spec in flattened(specs).items():
        try:
            shape, dtype = spec
            axes = tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
            kind = np.dtype(np.dtype(dtype).str)  # of C's types of the same size always the same one
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"field {name!r} is {spec!r}; give (shape of one transition's, dtype), such as ((8,), 'float32')"
            ) from error
        if kind.kind not in _KINDS or kind.itemsize > 8 or not kind.isnative:
            raise ValueError(
                f"field {name!r} has dtype {kind}; it must be bool, an integer or float16/32/64, in the machine's order"
            )
        if any(axis < 1 for axis in axes):
            raise ValueError(f"field {name!r} has shape {axes}; every axis must be at least 1")
        if math.prod(axes) * kind.itemsize >= 2**31:
            raise ValueError(f"field {name!r} has 2 GiB a transition or more")
        fields.append(Field(name, axes, kind))
    if not fields:
        raise ValueError("fields is empty; say what a transition is made of, such as {'obs': ((8,), 'float32')}")
    return tuple(fields)


def observations_of(specs: Mapping[str, Any]) -> list[str]:
    """The default of ``next_of``."""
    if any(name == "next_obs" or name.startswith("next_obs/") for name in specs):
        return []
    return [name for name in specs if name == "obs" or name.startswith("obs/")]


def spread(next_of: Sequence[str], specs: Mapping[str, Any]) -> list[str]:
    """The names, with all that is nested in one instead of it."""
    if isinstance(next_of, str) or not isinstance(next_of, Iterable):
        raise ValueError(f"next_of is {next_of!r}; give a sequence of names, such as ({next_of!r},)")
    names = [[field for field in specs if field == name or field.startswith(f"{name}/")] or [name] for name in next_of]
    return [field for fields in names for field in fields]


def array_of(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int | None) -> NDArray[Any]:
    """A C-contiguous, aligned array ``[rows, *shape]`` of the dtype.

    Args:
        name: For messages.
        value: An array, or what ``numpy.asarray`` makes one of. Without the first axis it is one row.
        shape: Of a row.
        dtype: Converted to where that keeps the kind of number (float64 to float32, int32 to int64) and all fit.
        rows: How many there must be; None for any number.

    Raises:
        ValueError: The shape or the dtype is another, a number is out of the dtype's range, or this is no array.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors with gradients or of a device
        raise ValueError(f"{name} cannot be read as an array: {error}") from error
    if array.shape == shape and rows in (None, 1):
        array = array[None]
    if array.shape[1:] != shape or array.ndim != 1 + len(shape) or (rows is not None and len(array) != rows):
        expected = ", ".join(map(str, ("N" if rows is None else rows, *shape)))
        raise ValueError(f"{name} has shape {list(array.shape)}; give [{expected}]")
    if array.dtype != dtype and array.size and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} has dtype {array.dtype}, which is not converted to {dtype}; give {dtype}")
    with np.errstate(over="ignore"):
        converted = np.require(array, dtype, ["C", "ALIGNED"])
    if not np.can_cast(array.dtype, dtype, "safe"):
        _check_fit(name, array, converted)
    return converted


def _check_fit(name: str, array: NDArray[Any], converted: NDArray[Any]) -> None:
    """Raises ValueError for integers that wrapped and numbers that became infinite; precision may go."""
    is_float = converted.dtype.kind == "f"
    lost = np.isinf(converted) & np.isfinite(array) if is_float else converted != array
    if lost.any():
        limits = np.finfo(converted.dtype) if is_float else np.iinfo(converted.dtype)
        raise ValueError(
            f"{name} has {array[lost][0]}, which does not fit {converted.dtype}; give {limits.min} to {limits.max}"
        )

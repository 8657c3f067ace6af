"""Conversion of single settings: from text and JSON by annotation, and back to JSON and text."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")
_NONE = ("none", "null")
_TUPLE = "$tuple"  # marks a tuple inside untyped JSON, which has only lists


class OptionError(ValueError):
    """An invalid setting; the message names the given value, what is allowed, and what to do."""


class UnknownSettingError(OptionError):
    """No setting has this name.

    Attributes:
        given: The name.
        has_advice: Whether the message suggests settings.
    """

    def __init__(self, message: str, given: str, *, has_advice: bool) -> None:
        """Set the attributes."""
        super().__init__(message)
        self.given = given
        self.has_advice = has_advice


class _MismatchError(Exception):
    """The value does not match this annotation; a union tries its next member."""


PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}
"""Words that an entry of a mapping takes for these values, beside JSON."""


def plain(value: Any) -> Any:
    """The number that a scalar of NumPy's holds, for example from a sweep over np.arange; others as they are."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def coerce(value: object, annotation: object, key: str, *, text: bool = False) -> object:
    """Value of the annotated type.

    Args:
        value: As it was given.
        annotation: What it must be.
        key: Its name, for messages.
        text: Whether ``value`` is a word of a command line, to be read; otherwise it must have its type already, except
            that whole floats count as integers, integers as floats, lists as tuples, NumPy's scalars as the numbers
            that they hold, and the words ``inf``, ``-inf`` and ``nan`` as floats (JSON has no number for them).

    Raises:
        OptionError: The value does not fit.
    """
    try:
        return _coerce(value, annotation, text)
    except _MismatchError:
        kind = "" if text else f" ({type(value).__name__})"
        raise OptionError(f"{key}: {value!r}{kind} was given; allowed is {type_name(annotation)}") from None


def _coerce(value: object, annotation: object, text: bool) -> object:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(value, typing.get_args(annotation), text)
    if origin is Literal:
        return _coerce_literal(value, typing.get_args(annotation), text)
    if annotation is None or annotation is type(None):
        if value is None or (text and str(value).lower() in _NONE):
            return None
        raise _MismatchError
    kind = origin or annotation
    is_untyped = kind is object or kind is typing.Any
    if not is_untyped:
        value = plain(value)
    if kind is bool:
        return _coerce_bool(value, text)
    if kind is int:
        return _coerce_int(value, text)
    if kind is float:
        return _coerce_float(value)
    if kind is str:
        if isinstance(value, Path):
            return str(value)
        if not isinstance(value, str):
            raise _MismatchError
        return value
    if isinstance(kind, type) and issubclass(kind, Path):
        if not isinstance(value, str | Path):
            raise _MismatchError
        return Path(value)
    if is_untyped:
        return _read_json(value) if text else _from_untyped(value)
    if kind is tuple:
        return _coerce_tuple(value, typing.get_args(annotation), text)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _coerce_mapping(value, typing.get_args(annotation), text)
    raise TypeError(f"{annotation!r} cannot be a setting; use a type that the module's docstring names")


def _coerce_union(value: object, members: tuple[object, ...], text: bool) -> object:
    # The narrow members first: words such as "auto" and "none" before numbers, numbers before str, which accepts
    # anything.
    order = sorted(members, key=_breadth)
    if not text:
        # The exact type takes precedence over a conversion: a float stays a float in int | float.
        order.sort(key=lambda member: type(value) is not member)
    for member in order:
        try:
            return _coerce(value, member, text)
        except _MismatchError:
            continue
    raise _MismatchError


def _breadth(member: object) -> int:
    """How many values a union's member accepts: the order in which members are tried."""
    if member is type(None) or typing.get_origin(member) is Literal:
        return 0
    return {str: 2, object: 3}.get(typing.cast("type", member), 1)


def _coerce_literal(value: object, allowed: tuple[object, ...], text: bool) -> object:
    for choice in allowed:
        if type(value) is type(choice) and value == choice:
            return choice
        if text and isinstance(value, str) and value.lower() == str(choice).lower():
            return choice
    raise _MismatchError


def _coerce_bool(value: object, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str):
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
    raise _MismatchError


def _coerce_int(value: object, text: bool) -> int:
    if isinstance(value, bool):
        raise _MismatchError
    if isinstance(value, int):
        return value
    if text and isinstance(value, str):
        try:
            return int(value, 0) if value[:2].lower() in ("0x", "0b", "0o") else int(value)
        except ValueError:
            pass
        try:
            value = float(value)
        except ValueError:
            raise _MismatchError from None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _MismatchError


def _coerce_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _MismatchError
    try:
        return float(value)
    except ValueError:
        raise _MismatchError from None


def _coerce_tuple(value: object, items: tuple[object, ...], text: bool) -> tuple[object, ...]:
    words = False
    if text and isinstance(value, str):
        if value.lstrip().startswith("["):
            value = _read_json(value)
        else:
            value = [word.strip() for word in value.strip("() ").split(",") if word.strip()]
            words = True
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _MismatchError
    if not items:
        items = (object, ...)
    if len(items) == 2 and items[1] is ...:
        return tuple(_coerce(item, items[0], words) for item in value)
    if len(value) != len(items):
        raise _MismatchError
    return tuple(_coerce(item, kind, words) for item, kind in zip(value, items, strict=True))


def _coerce_mapping(value: object, items: tuple[object, ...], text: bool) -> dict[str, object]:
    if text:
        value = _read_json(value)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _MismatchError
    kind = items[1] if len(items) == 2 else object
    return {str(name): _coerce(item, kind, False) for name, item in value.items()}


def _read_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return _from_untyped(json.loads(value))
    except json.JSONDecodeError:
        raise _MismatchError from None


def _from_untyped(value: object) -> object:
    """Undo ``_to_untyped``; values that did not come from JSON stay as they are."""
    if isinstance(value, Mapping):
        if set(value) == {_TUPLE} and isinstance(value[_TUPLE], list):
            return tuple(_from_untyped(item) for item in value[_TUPLE])
        return {name: _from_untyped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_from_untyped(item) for item in value]
    return value


# ------------------------------------------------------------------------------------------------------------ writing


def encode(value: object, annotation: object, key: str) -> object:
    """Convert a value to JSON data that ``coerce`` converts back to an equal value.

    Args:
        value: A field's value.
        annotation: The field's annotation.
        key: The field's name, for messages.

    Raises:
        OptionError: JSON cannot hold the value.
    """
    kind = typing.get_origin(annotation) or annotation
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no NaN or infinity. Their text is read back as a float only if the annotation allows floats.
        if math.isfinite(value):
            return value
        if _mentions(annotation, float) and not _mentions(annotation, str):
            return repr(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple) and _mentions(annotation, tuple):
        members = typing.get_args(annotation) if kind is tuple else _tuple_items(annotation)
        kinds = [members[0]] * len(value) if members[-1:] == (...,) else list(members)
        return [encode(item, k, key) for item, k in zip(value, kinds, strict=True)]
    if isinstance(value, Mapping):
        arguments = typing.get_args(_mapping_member(annotation))
        inner = arguments[1] if len(arguments) == 2 else object
        if set(value) == {_TUPLE}:
            raise OptionError(f"{key}: a mapping with the single name {_TUPLE!r} cannot be saved; use another name")
        return {_check_name(name, key): encode(item, inner, key) for name, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [encode(item, object, key) for item in value]}
    if isinstance(value, list):
        return [encode(item, object, key) for item in value]
    raise OptionError(
        f"{key}: {value!r} ({type(value).__name__}) cannot be saved in config.json; use numbers, text, booleans, None, "
        "tuples, lists and mappings of these"
    )


def _check_name(name: object, key: str) -> str:
    if not isinstance(name, str):
        raise OptionError(f"{key}: the name {name!r} of an entry is not text; JSON allows text only")
    return name


def members_of(annotation: object) -> tuple[object, ...]:
    """The members of a union; of anything else, itself."""
    origin = typing.get_origin(annotation)
    return typing.get_args(annotation) if origin in (typing.Union, types.UnionType) else (annotation,)


def _mentions(annotation: object, kind: type) -> bool:
    return any((typing.get_origin(member) or member) is kind for member in members_of(annotation))


def _tuple_items(annotation: object) -> tuple[object, ...]:
    member = next(m for m in members_of(annotation) if (typing.get_origin(m) or m) is tuple)
    return typing.get_args(member) or (object, ...)


def _mapping_member(annotation: object) -> object:
    for member in members_of(annotation):
        kind = typing.get_origin(member) or member
        if isinstance(kind, type) and issubclass(kind, Mapping):
            return member
    return None


def type_name(annotation: object) -> str:
    """What is allowed, in words: ``"auto" or an integer``."""
    members = members_of(annotation)
    if len(members) > 1:
        return " or ".join(type_name(member) for member in members)
    if typing.get_origin(annotation) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(annotation))
    kind = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if kind is tuple:
        if not arguments:
            return "a list, comma-separated"
        inner = type_name(arguments[0]) if arguments[-1] is ... else ", ".join(type_name(a) for a in arguments)
        return f"a list ({inner}), comma-separated"
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a JSON object"
    names: dict[object, str] = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        Path: "a path",
        type(None): "none",
        None: "none",
        object: "any JSON value",
        typing.Any: "any JSON value",
    }
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def format_untyped(value: object) -> str:
    """Format an entry of a mapping, which may be any JSON value, as it is written on the command line."""
    if isinstance(value, str) and value not in PYTHON_CONSTANTS:
        try:
            json.loads(value)
        except json.JSONDecodeError:
            return value
    return json.dumps(value)


def format_value(value: object) -> str:
    """Format a value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(format_value(item) for item in value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value), default=str)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)

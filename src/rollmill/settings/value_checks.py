"""Which values a setting may have. Errors name the setting, the given value, and what is allowed."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class ConfigError(ValueError):
    """A setting's value is not one of its choices, or settings cannot be used together; raised before a run starts."""


class Rule(NamedTuple):
    """What a value must be.

    Attributes:
        holds: Whether a value is allowed, whatever its type.
        text: What is allowed, in words.
    """

    holds: Callable[[Any], bool]
    text: str

    def check(self, name: str, value: object, otherwise: str = "") -> None:
        """Require an allowed value.

        Args:
            name: The setting with its section: ``"learner.epochs"``.
            value: The given value.
            otherwise: What else the caller allows, for the message: ``', or "auto"'``.

        Raises:
            ValueError: It is not allowed.
        """
        if not self.holds(value):
            raise ValueError(f"{name}={value!r}: give {self.text}{otherwise}")


def number(holds: Callable[[float], bool], text: str) -> Rule:
    """A finite number for which ``holds`` is true, which ``text`` describes."""

    def is_allowed(value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and holds(value)

    return Rule(is_allowed, f"a finite number {text}".rstrip())


def integer(least: int) -> Rule:
    """An integer of at least ``least``; booleans do not count."""
    return Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
        f"an integer of at least {least}",
    )


def one_of(*values: object) -> Rule:
    """One of these values."""
    return Rule(lambda value: _is_one_of(value, values), f"one of {', '.join(map(repr, values))}")


NAME = Rule(lambda value: isinstance(value, str) and value != "", "a name")
ANY_NUMBER = number(lambda value: True, "")
ABOVE_ZERO = number(lambda value: value > 0, "above 0")
AT_LEAST_ZERO = number(lambda value: value >= 0, "of 0 or more")
UNIT = number(lambda value: 0 <= value <= 1, "in [0, 1]")
UNIT_BELOW_ONE = number(lambda value: 0 <= value < 1, "in [0, 1)")
SHARE = number(lambda value: 0 < value <= 1, "above 0 and at most 1")


def check_integer(name: str, value: object, least: int, otherwise: str = "") -> None:
    """Require an integer of at least ``least``; see :meth:`Rule.check`."""
    integer(least).check(name, value, otherwise)


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Require one of ``allowed``, where 1 differs from True and 0 from False.

    Raises:
        ConfigError: It is not one of them.
    """
    allowed = tuple(allowed)
    if not _is_one_of(value, allowed):
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(map(repr, allowed))}")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Base of a configuration dataclass whose fields say which values they may have.

    A field that :func:`rollmill.settings.fields.setting` gives a rule must obey it, or have another value that its
    annotation names: None, or one of a ``Literal``. A field whose annotation names all its values must have one of
    these.

    ``class EnvConfig(Checked, section="env")`` gives its own fields keys in that section.
    """

    SECTION: ClassVar[str]

    def __init_subclass__(cls, section: str | None = None) -> None:
        """Take the section; without one, the base's remains."""
        if section is not None:
            cls.SECTION = section

    def __post_init__(self) -> None:
        """Check each field by itself; subclasses check combinations after it.

        Raises:
            ValueError: A value is not allowed; the message names the setting, the value, what is allowed and what to
                do.
        """
        kind: type[DataclassInstance] = type(self)
        for field in _checked_fields(kind):
            value = getattr(self, field.name)
            if field.rule is None:
                check_choice(field.key, value, field.choices)
            elif not _is_one_of(value, field.choices):
                field.rule.check(field.key, value, field.otherwise)


class _CheckedField(NamedTuple):
    name: str
    key: str
    rule: Rule | None
    choices: tuple[object, ...]
    otherwise: str


@functools.cache
def _checked_fields(cls: type[DataclassInstance]) -> tuple[_CheckedField, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in fields(cls):
        choices, is_open = _choices(hints[field.name])
        rule = field.metadata.get("rule")
        if rule is None and is_open:
            continue
        others = "".join(f", or {choice!r}" for choice in choices)
        otherwise = f"{others} {field.metadata.get('remark', '')}".rstrip()
        found.append(_CheckedField(field.name, key_of(cls, field.name), rule, choices, otherwise))
    return tuple(found)


def key_of(cls: type[DataclassInstance], name: str, prefix: str = "") -> str:
    """The key of a field: its own, or its name in its class's section.

    Args:
        cls: The dataclass.
        name: The field.
        prefix: What stands before the name where its class has no section.
    """
    field = next(field for field in fields(cls) if field.name == name)
    if "key" in field.metadata:
        return str(field.metadata["key"])
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    section = getattr(owner, "SECTION", None)
    return (prefix if section is None else f"{section}." if section else "") + name


def _choices(annotation: object) -> tuple[tuple[object, ...], bool]:
    """The values that an annotation names, and whether it allows others."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [_choices(member) for member in typing.get_args(annotation)]
        return tuple(choice for choices, _ in parts for choice in choices), any(is_open for _, is_open in parts)
    if origin is Literal:
        return typing.get_args(annotation), False
    if annotation is type(None):
        return (None,), False
    return ((True, False), False) if annotation is bool else ((), True)


def _is_one_of(value: object, choices: Iterable[object]) -> bool:
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)

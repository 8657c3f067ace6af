"""Checks of single settings. Errors name the setting, the given value, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any


def check_integer(name: str, value: Any, least: int, otherwise: str = "") -> None:
    """Require an integer of at least ``least``.

    Args:
        name: The setting with its section: ``"learner.epochs"``.
        value: The given value.
        least: The smallest allowed value.
        otherwise: What else the caller allows, for the message: ``', or "auto"'``.

    Raises:
        ValueError: It is not an integer (booleans are not), or it is too small.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: give an integer of at least {least}{otherwise}")


def check_number(name: str, value: Any, rule: Callable[[float], bool], allowed: str) -> None:
    """Require a finite number for which ``rule`` is true; ``allowed`` describes the rule.

    Raises:
        ValueError: It is not such a number.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not rule(value):
        raise ValueError(f"{name}={value!r}: give a finite number {allowed}")


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Require one of ``allowed``, where 1 differs from True and 0 from False.

    Raises:
        ValueError: It is not one of them.
    """
    allowed = tuple(allowed)
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, allowed))}")


def above_zero(value: float) -> bool:
    """(0, oo)."""
    return value > 0


def at_least_zero(value: float) -> bool:
    """[0, oo)."""
    return value >= 0


def unit(value: float) -> bool:
    """[0, 1]."""
    return 0 <= value <= 1


def unit_below_one(value: float) -> bool:
    """[0, 1)."""
    return 0 <= value < 1


def share(value: float) -> bool:
    """(0, 1]."""
    return 0 < value <= 1


def any_number(_: float) -> bool:
    """Any number."""
    return True

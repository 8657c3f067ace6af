"""How ``env.wrappers`` names wrappers and their arguments; imports neither Gymnasium nor any simulator."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollmill.settings.value_checks import ConfigError

EXAMPLE = 'for example "TimeAwareObservation, ResizeObservation(shape=(84, 84)), my_module.MyWrapper"'


@dataclass(frozen=True)
class WrapperCall:
    """A wrapper and its arguments.

    Attributes:
        name: A class of ``gymnasium.wrappers``, or with dots a class of an importable module.
        args: Positional arguments after the environment.
        kwargs: Arguments by name.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return "." in self.name


def parse_wrappers(text: str) -> tuple[WrapperCall, ...]:
    """Read wrappers, the innermost first, separated by commas, as Python would write their calls.

    Args:
        text: Arguments are literals: numbers, text, True, False, None, tuples, lists and dicts of them.

    Raises:
        ConfigError: It is something else.
    """
    if not text.strip():
        return ()
    try:
        body = ast.parse(f"({text},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        body = None
    if not isinstance(body, ast.Tuple):
        raise ConfigError(f"env.wrappers={text!r} cannot be read: give names separated by commas, {EXAMPLE}.")
    return tuple(_read(node, text) for node in body.elts)


def _read(node: ast.expr, text: str) -> WrapperCall:
    called, args, keywords = node, [], []
    if isinstance(node, ast.Call):
        called, args, keywords = node.func, node.args, node.keywords
    name = _dotted(called)
    given = [keyword.arg for keyword in keywords]
    try:
        if name is None or None in given or len(given) > len(set(given)):
            raise ValueError
        return WrapperCall(
            name,
            tuple(ast.literal_eval(arg) for arg in args),
            {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords},
        )
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"env.wrappers={text!r}: {ast.unparse(node)} is not a wrapper with literal arguments; {EXAMPLE}. For "
            "functions as arguments, write a wrapper of your own."
        ) from None


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None

"""Documentation of a dataclass's fields, from its docstring."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Final, Literal

_MARKUP: Final = re.compile(r"``(.+?)``|:\w+:`~?([^`]+)`")


@functools.cache
def attribute_docs(cls: type) -> Mapping[str, str]:
    """Field -> text, from the ``Attributes`` sections (Google style) of the class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs.update(_parse_attributes(base.__doc__ or ""))
    return docs


def without_markup(text: str) -> str:
    """Text of a docstring for a terminal: without the marks around code and names."""
    return _MARKUP.sub(lambda found: found[1] or found[2], text)


def _parse_attributes(docstring: str) -> dict[str, str]:
    docs: dict[str, str] = {}
    state: Literal["outside", "inside"] = "outside"
    indent: int | None = None
    name = ""
    for line in inspect.cleandoc(docstring).splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if stripped == "Attributes:" and depth == 0:
            state, indent = "inside", None
        elif state == "inside" and stripped and depth == 0:
            state = "outside"
        elif state == "inside" and stripped:
            indent = depth if indent is None else indent
            head, colon, text = stripped.partition(":")
            if depth == indent and colon:
                name = head.split(" (")[0].strip()
                docs[name] = text.strip()
            elif name:
                docs[name] = f"{docs[name]} {stripped}".strip()
    return docs

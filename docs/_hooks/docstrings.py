"""An extension of griffe, which reads docstrings for the API page: from the style of the source to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?[a-z]+:`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Turns roles into code, and literal blocks into blocks of code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return a docstring with the markup of Markdown."""
    text = _ROLE.sub(lambda role: f"`{role[1]}`", text)
    text = re.sub(r"^( *)::\n", "", text, flags=re.MULTILINE)
    return re.sub(r"(\S)::$", r"\1:", text, flags=re.MULTILINE)

"""Logins in addresses (``http://user:password@host``), which no tracker and no page gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# To the last @, because a password may have one. In hf://USER/NAME@REVISION nothing is secret.
_LOGIN = re.compile(r"(?<=://)(?<!\bhf://)[^\s'\"]*@")


def without_logins(value: Any) -> Any:
    """A text, or a value with texts in lists and mappings, whose addresses have no logins."""
    if isinstance(value, str):
        return _LOGIN.sub("", value)
    if isinstance(value, Mapping):
        return {key: without_logins(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([without_logins(entry) for entry in value])
    return value

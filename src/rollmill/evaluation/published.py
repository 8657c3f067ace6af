"""What of a run's settings and command is published with its agent: no logins, and no folders of the machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

# Where a run reports to is nobody else's business.
_PRIVATE = "tracking"
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
_FOLDERS = re.compile(r"(?<![\w:/.~-])(?:/|~/)(?:[^/\s=,:]+/)+")


def published_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are published, nested or by dotted key: without those of trackers, and without logins."""
    return {key: _without_logins(value) for key, value in settings.items() if key.partition(".")[0] != _PRIVATE}


def published_command(command: str) -> str:
    """A command as it is published: likewise, and with the last part of paths only.

    Args:
        command: As a shell takes it.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""  # Nobody can tell which of its words are settings of trackers.
    kept, is_private = [], False
    for word in words:
        if word.startswith("--"):
            is_private = word[2:].partition("=")[0].partition(".")[0] == _PRIVATE
        if not is_private:
            kept.append(_FOLDERS.sub("", _without_logins(word)))
    return shlex.join(kept)


def _without_logins(value: Any) -> Any:
    if isinstance(value, str):
        return _LOGIN.sub("", value)
    if isinstance(value, Mapping):
        return {key: _without_logins(entry) for key, entry in value.items()}
    return [_without_logins(entry) for entry in value] if isinstance(value, list | tuple) else value

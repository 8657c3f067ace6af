"""What of a run's settings and command is published with its agent: no logins, and no folders of the machine."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.tracking.config import TrackingConfig
from rollmill.tracking.logins import without_logins

# Settings of trackers name accounts and servers. A setting may be given by the last part of its key.
_SECTION = "tracking"
_PRIVATE = frozenset({_SECTION, "tracker", *(field.name for field in dataclasses.fields(TrackingConfig))})
_PATH = re.compile(r"(?:file://|~?/|\.\.?/)")


def published_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are published, nested or by dotted key: without those of trackers, and without logins.

    Guests and opponents, which a run keeps with the folders of the machine, have the last part of their path.
    """
    kept = {key: without_logins(value) for key, value in settings.items() if not _is_private(key)}
    if "guests" in (population := kept.get("population", {})):
        population["guests"] = [_without_folders(guest) for guest in population["guests"]]
    for key in ("population.guests", "eval_against"):
        if isinstance(players := kept.get(key), str):
            kept[key] = _without_folders(players)
        elif players:
            kept[key] = [_without_folders(player) for player in players]
    return kept


def published_command(command: str) -> str:
    """A command as it is published: likewise, and with the last part of paths that do not begin with a folder's name.

    Args:
        command: As a shell takes it.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""  # Its words cannot be told apart.
    kept: list[str] = []
    is_value = False
    for word in _without_interpreter(words):
        is_option = word.startswith("--")
        if is_option and _is_private(word[2:].partition("=")[0]):
            is_value = "=" not in word
        elif is_value and not is_option:
            is_value = False
        else:
            is_value = False
            kept.append(_without_folders(without_logins(word)))
    return shlex.join(kept)


def _without_interpreter(words: list[str]) -> list[str]:
    """The words of the command ``rollmill``, however Python was told to run it."""
    for index, word in enumerate(words[1:], 1):
        if word == "-m" and words[index + 1 : index + 2] == ["rollmill"]:
            return words[index + 1 :]
        if not word.startswith("-"):
            return ["rollmill", *words[index + 1 :]] if Path(word).name == "rollmill" else words
    return words


def _is_private(key: str) -> bool:
    return key.replace("-", "_").replace("__", ".").partition(".")[0] in _PRIVATE


def _without_folders(word: str) -> str:
    """A word, of which ``=`` and commas separate parts, with the last part of each path."""
    parts = re.split(r"([=,])", word)
    return "".join(part.rstrip("/").rpartition("/")[2] if _PATH.match(part) else part for part in parts)

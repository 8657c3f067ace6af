"""Which files of a run may have code executed: those that this user's own runs wrote, and what the user says to trust.

A run's ``config.json`` names the environment, what it is built with and what is imported first, all of which is code to
whoever evaluates or resumes the run. Rollmill therefore signs it (see :mod:`rollmill.runtime.signatures`). What is not
signed with this user's key is read as data; an environment is built of it only if it is one of the built-in ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import FAMILIES
from rollmill.envs.registry import registrations
from rollmill.runtime.signatures import Verdict, sign, signing_key, verify

__all__ = ["SIGNATURE", "UntrustedError", "named_code", "require_trust", "signed", "unsigned", "verdict_on"]

SIGNATURE = "signature"
_PURPOSE = "settings"
# Whose ids Gymnasium's registry may have from packages that Rollmill knows; ids of others may be anybody's.
_OWN_ENTRY_POINTS = ("gymnasium.envs.", "ale_py.", "minigrid.")


class UntrustedError(ValueError):
    """A file names code that would be executed, and neither this user's key nor the user vouches for it."""


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a signature in it."""
    content = unsigned(content)
    return {**content, SIGNATURE: sign(_PURPOSE, [_canonical(content)])}


def unsigned(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content without the signature, if it has one."""
    return {key: value for key, value in content.items() if key != SIGNATURE}


def verdict_on(content: Mapping[str, Any]) -> Verdict:
    """What the signature of a JSON file's content says of it."""
    return verify(_PURPOSE, [_canonical(unsigned(content))], content.get(SIGNATURE))


def _canonical(content: Mapping[str, Any]) -> bytes:
    """The same for the same content, however it was written."""
    return json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":")).encode()


def require_trust(path: Path, verdict: Verdict, code: str, *, trust: bool) -> None:
    """Raise unless the code that a file names may be executed.

    Args:
        path: The file.
        verdict: What its signature says.
        code: What would be executed, as :func:`named_code` says it; empty for nothing.
        trust: Whether the user said to trust it.

    Raises:
        UntrustedError: It may not; the message says what would be executed, why not, and how to go on.
    """
    if not code or trust or verdict is Verdict.VALID:
        return
    why = {
        Verdict.CHANGED: "it was changed after a run of this user wrote it; undo the change and give the setting on "
        "the command line instead, or, if the change is yours",
        Verdict.FOREIGN: "it was signed with another key, by another user or on another machine; if you trust whoever "
        "wrote it",
        Verdict.UNSIGNED: "it has no signature, so it was written by somebody else, by hand or by an older version of "
        "Rollmill; if you trust whoever wrote it",
    }[verdict]
    # Perhaps it was signed with the user's own key, which cannot be read at present.
    note = signing_key().note if verdict is Verdict.FOREIGN else ""
    raise UntrustedError(
        f"{path} is not trusted, and {code}, which would run code: {why}, say so with --trust (trust=True). Weights, "
        f"metrics and reports can be read without it.{f' Note: {note}.' if note else ''}"
    )


def named_code(env: EnvConfig) -> str:
    """What of an environment's configuration is code, in words; empty where there is nothing but built-in environments.

    A built-in environment with numbers for arguments runs the code of installed packages alone. Text is not let pass,
    because for some environments it is a path, a module or a class.
    """
    if env.imports:
        return f"it imports {', '.join(env.imports)} (env.imports)"
    for key, value in env.kwargs.items():
        if value is not None and not isinstance(value, bool | int | float):
            return f"it gives the environment {env.name!r} the argument {key}={value!r} (env.kwargs)"
    if not _is_built_in(env.name):
        return f"it names the environment {env.name!r}, which is not a built-in one (env.name)"
    return ""


def _is_built_in(name: str) -> bool:
    """Whether a name leads to an environment of the packages that Rollmill knows, and imports nothing else."""
    if ":" in name or any(entry.name == name for entry in registrations()):
        return False
    family, slash, id = name.partition("/")
    if slash and family in FAMILIES and family not in ("gym", "mujoco"):
        return True  # These families look their names up in the lists of their packages.
    from rollmill.envs.errors import RollmillEnvError
    from rollmill.envs.gym import find_spec

    try:
        spec = find_spec(id if slash and family in FAMILIES else name)
    except RollmillEnvError:
        return False
    entry_points = [point for point in (spec.entry_point, spec.vector_entry_point) if point is not None]
    return bool(entry_points) and all(
        isinstance(point, str) and point.startswith(_OWN_ENTRY_POINTS) for point in entry_points
    )

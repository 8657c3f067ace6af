"""JSON files with a signature in them, and when code from a run's directory may be executed.

Files of strangers are read as data. What would execute code, or hand a file's bytes to native code, asks
:func:`require_trust` first: this user's own processes signed the file, or the user said ``--trust``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.runtime.signatures import Verdict, sign, signing_key, verify

_SIGNATURE = "signature"
_SETTINGS = "settings"  # The purpose of config.json and tuned.json, see `sign`.


class UntrustedError(ValueError):
    """A file names code to execute, and neither this user's key nor the user vouches for it."""


def signed(content: Mapping[str, Any], purpose: str = _SETTINGS) -> dict[str, Any]:
    """Adds a signature to the content of a JSON file."""
    content = unsigned(content)
    return {**content, _SIGNATURE: sign(purpose, [_canonical(content)])}


def unsigned(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content without the signature, if it has one."""
    return {key: value for key, value in content.items() if key != _SIGNATURE}


def verdict_on(content: Mapping[str, Any], purpose: str = _SETTINGS) -> Verdict:
    """Verifies the signature in the content of a JSON file."""
    return verify(purpose, [_canonical(unsigned(content))], content.get(_SIGNATURE))


def read_signed(path: Path, purpose: str = _SETTINGS) -> tuple[dict[str, Any], Verdict]:
    """Reads a JSON file once: its content without the signature, and the verdict on that.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON object.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        return unsigned(content), verdict_on(content, purpose)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _canonical(content: Mapping[str, Any]) -> bytes:
    """A canonical form of the content, independent of its formatting."""
    return json.dumps(json.loads(json.dumps(content)), sort_keys=True, separators=(",", ":")).encode()


def require_trust(path: Path, verdict: Verdict, reason: str, *, trust: bool) -> None:
    """Raise unless a file may name code to execute.

    Args:
        path: The file.
        verdict: What its signature says.
        reason: What about it needs trust, as a main clause; empty for nothing.
        trust: Whether the user said to trust it.

    Raises:
        UntrustedError: It may not; the message says the reason, why it is not trusted, and how to go on.
    """
    if not reason or trust or verdict is Verdict.VALID:
        return
    why = {
        Verdict.CHANGED: "it was changed after a run of this user wrote it; undo the change and give the setting on "
        "the command line instead, or, if the change is yours",
        Verdict.FOREIGN: "it was signed with another key, by another user or on another machine; if you trust that "
        "user",
        Verdict.UNSIGNED: "it has no signature, so it was written by somebody else, by hand or by an older version of "
        "Rollmill; if you trust where it comes from",
    }[verdict]
    # Perhaps it was signed with the user's own key, which cannot be read at present.
    note = signing_key().note if verdict is Verdict.FOREIGN else ""
    raise UntrustedError(
        f"{path} is not trusted, and {reason}: {why}, say so with --trust (trust=True). Weights, metrics and reports "
        f"can be read without it.{f' Note: {note}.' if note else ''}"
    )

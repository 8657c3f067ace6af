"""What a check has found."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        check: What was checked.
        state: "ok"; "warning": runs train, but something is slow or missing; "problem": runs cannot train.
        found: What the check found.
        advice: What to do about it, or how to get what is missing; empty if there is nothing to do.
    """

    check: str
    state: State
    found: str
    advice: str = ""

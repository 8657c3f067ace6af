"""Tracebacks without Rollmill's own frames above the user's code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_OURS_OR_LIBRARIES = tuple(f"{folder}/" for folder in dict.fromkeys([_PACKAGE, *_LIBRARIES]))


def _is_users(frame: traceback.FrameSummary) -> bool:
    # Pseudo files such as "<frozen runpy>" are not the user's; notebooks' cells have real or "<ipython-...>" names.
    # cloudpickle calls the files of what it has sent "<dynamic-code>".
    name = frame.filename
    if name.startswith("<") and not name.startswith(("<ipython", "<dynamic-code>")):
        return False
    return not name.startswith(_OURS_OR_LIBRARIES) and "site-packages" not in name and "dist-packages" not in name


def format_error(error: BaseException) -> str:
    """The traceback as Python shows it, without the frames above the user's first one.

    The user's code is what is neither Rollmill's, the standard library's nor an installed package's. A syntax error in
    it is shown without frames, and so is an exception of Rollmill's own classes, whose message is written for the user.
    Nothing is returned for one of the latter that has no cause in code of others.
    """
    told = traceback.TracebackException.from_exception(error)
    if _is_message(told) and _is_ours_alone(told.__cause__):
        return ""
    current: traceback.TracebackException | None = told
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        first = next((i for i, frame in enumerate(current.stack) if _is_users(frame)), None)
        if first is not None:
            del current.stack[:first]
        elif _is_message(current) or _is_syntax_error_of_users(current):
            # Leaves out the heading as well, which an empty stack does not. Python allows it, the type stubs do not.
            current.stack = None  # type: ignore[assignment]
        current = current.__cause__ or current.__context__
    return "".join(told.format())


def is_ours(kind: type[BaseException]) -> bool:
    """Whether an exception's class is Rollmill's own, so that its message was written for the user."""
    return kind.__module__.partition(".")[0] == "rollmill"


def is_of_user_code(error: BaseException) -> bool:
    """Whether an exception comes from the user's code: it has a frame of it, or is a syntax error in it."""
    told = traceback.TracebackException.from_exception(error)
    return any(map(_is_users, told.stack)) or _is_syntax_error_of_users(told)


def _is_message(told: traceback.TracebackException) -> bool:
    return told.exc_type is not None and is_ours(told.exc_type)


def _is_ours_alone(told: traceback.TracebackException | None) -> bool:
    return told is None or all(frame.filename.startswith(f"{_PACKAGE}/") for frame in told.stack)


def _is_syntax_error_of_users(told: traceback.TracebackException) -> bool:
    file = getattr(told, "filename", None)  # Only syntax errors have one.
    return file is not None and _is_users(traceback.FrameSummary(file, 1, "", lookup_line=False))

"""Tracebacks of a child process without Rollmill's own frames above the user's code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["format_error"]

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_OURS_OR_LIBRARIES = tuple(f"{folder}/" for folder in dict.fromkeys([_PACKAGE, *_LIBRARIES]))


def _is_users(frame: traceback.FrameSummary) -> bool:
    # Pseudo files such as "<frozen runpy>" are nobody's; notebooks' cells have real or "<ipython-...>" names.
    name = frame.filename
    if name.startswith("<") and not name.startswith("<ipython"):
        return False
    return not name.startswith(_OURS_OR_LIBRARIES) and "site-packages" not in name and "dist-packages" not in name


def format_error(error: BaseException) -> str:
    """The traceback as Python shows it, without the frames above the first one of the user's.

    The user's code is what is neither Rollmill's, the standard library's nor an installed package's.
    """
    told = traceback.TracebackException.from_exception(error)
    current: traceback.TracebackException | None = told
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        del current.stack[: next((i for i, frame in enumerate(current.stack) if _is_users(frame)), 0)]
        current = current.__cause__ or current.__context__
    return "".join(told.format())

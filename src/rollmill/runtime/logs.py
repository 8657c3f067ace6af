"""``run.log``: the log records of all processes of a run, each line with the process's name.

The console is not touched: it belongs to the live display and to the final report.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s [{process}] %(name)s: %(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"


class _LineFormatter(logging.Formatter):
    """Repeats the head on every line of a record, so that each line has its time and process."""

    def __init__(self, process: str) -> None:
        super().__init__(_FORMAT.format(process=process.replace("%", "%%")), _DATE)

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).split("\n")
        if len(lines) == 1:
            return lines[0]
        # The message's own first line tells where the head ends.
        head = lines[0].removesuffix(record.getMessage().split("\n")[0])
        return "\n".join([lines[0], *(head + line for line in lines[1:])])


class _QuietThirdParties(logging.Filter):
    """Passes Rollmill's records from INFO on, and warnings of other libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.name == "rollmill" or record.name.startswith("rollmill.")
        return record.levelno >= (logging.INFO if ours else logging.WARNING)


class _LogFile(logging.FileHandler):
    """Drops lines on a full disk instead of printing a traceback for each of them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def _handler(path: Path, process: str) -> logging.FileHandler:
    # Append mode: the kernel puts each write at the end, so lines of different processes do not overwrite each other.
    handler = _LogFile(path, mode="a", encoding="utf-8")
    handler.setFormatter(_LineFormatter(process))
    handler.addFilter(_QuietThirdParties())
    return handler


@contextmanager
def run_log(path: Path, process: str = "main") -> Iterator[logging.Logger]:
    """Writes what is logged to ``path`` (appended; its folder is made) while the context lasts.

    Gives the logger ``rollmill``. Other loggers' warnings go to the file as well as to where they went before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _handler(path, process)
    root, ours = logging.getLogger(), logging.getLogger("rollmill")
    level = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield ours
    finally:
        root.removeHandler(handler)
        ours.setLevel(level)
        handler.close()


def open_in_child(path: Path, process: str) -> None:
    """Sends a child process's log records, and Python's warnings, to ``path`` for the rest of its life.

    Args:
        path: The run's log.
        process: The process's name.
    """
    root = logging.getLogger()
    root.addHandler(_handler(path, process))
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)

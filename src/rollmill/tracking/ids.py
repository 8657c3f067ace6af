"""The services' ids of a run, kept in its directory so that a resumed run continues the same tracked run."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import read_signed, signed
from rollmill.storage.whole_files import write_whole

TRACKING_FILE = "tracking.json"
_PURPOSE = "tracking"
# Until 2026-11, the id of Weights & Biases alone.
_OLD_WANDB_FILE = "wandb_id.txt"


class TrackedIds:
    """Name of a tracker -> the id of the run there, in ``tracking.json``. Any thread may call its methods.

    Args:
        run_dir: The run's directory.
        trust: Whether to use a file that this user's runs did not write. Without it, such ids are not used, since they
            could name another run of the user.
    """

    def __init__(self, run_dir: Path, *, trust: bool = False) -> None:
        self._path = run_dir / TRACKING_FILE
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            content, verdict = read_signed(self._path, _PURPOSE)
            if trust or verdict is Verdict.VALID:
                self._ids = {name: id for name, id in content.items() if isinstance(id, str)}
        with contextlib.suppress(OSError, ValueError):
            old = (run_dir / _OLD_WANDB_FILE).read_text().strip()
            # It has no signature of its own.
            if trust or read_signed(run_dir / "config.json")[1] is Verdict.VALID:
                self._ids.setdefault("wandb", old)

    def get(self, tracker: str) -> str | None:
        """The id of the run at a tracker; None if it was never there."""
        with self._lock:
            return self._ids.get(tracker) or None

    def set(self, tracker: str, id: str) -> None:
        """Keep an id.

        Raises:
            OSError: It cannot be written.
        """
        with self._lock:
            if self._ids.get(tracker) == id:
                return
            self._ids[tracker] = id
            content = json.dumps(signed(self._ids, _PURPOSE), indent=2) + "\n"
            write_whole(self._path, content.encode(), self._path.with_suffix(".new"))

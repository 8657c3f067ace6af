"""The queue of networks between the learner and the evaluator, and the results of evaluations.

``evaluations/steps_<agent steps>.pt`` waits to be evaluated; ``evaluations.jsonl`` holds a line for each evaluation;
``videos/steps_<agent steps>.mp4`` shows an episode of some of them.
Importing this imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.storage.checkpoint_file import encode_checkpoint
from rollmill.storage.whole_files import write_whole

EVALUATIONS_FILE = "evaluations.jsonl"
_FOLDER = "evaluations"
_VIDEOS = "videos"
_NAME = re.compile(r"steps_(\d+)\.pt")


class EvaluationQueue:
    """The evaluations of a run.

    Args:
        run_dir: The run's directory.
        every_steps: Agent steps from one evaluation to the next; None for none.
    """

    def __init__(self, run_dir: Path, every_steps: int | None = None) -> None:
        self._run_dir = run_dir
        self._folder = run_dir / _FOLDER
        self._every_steps = every_steps
        left = [int(match[1]) for path in self.pending() if (match := _NAME.fullmatch(path.name))]
        self._last = max([*left, *(int(record["agent_steps"]) for record in self.records())], default=-1)

    @property
    def is_scheduled(self) -> bool:
        """Whether networks are evaluated every so many steps."""
        return self._every_steps is not None

    def is_due(self, agent_steps: int) -> bool:
        """Whether to queue the network after ``agent_steps``: the first one, and one in each interval."""
        if self._every_steps is None:
            return False
        return self._last < 0 or agent_steps // self._every_steps > self._last // self._every_steps

    def leave(self, model: Mapping[str, Any], agent_steps: int) -> None:
        """Queues a network, unless the one after ``agent_steps`` was queued already.

        Args:
            model: Its ``state_dict``.
            agent_steps: Agent steps that it has learned from.
        """
        if agent_steps <= self._last:
            return
        self._last = agent_steps
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"steps_{agent_steps:012d}.pt"
        for left in self._folder.glob("*.new"):
            left.unlink(missing_ok=True)  # of a process that was killed
        content = encode_checkpoint({"model": model, "counters": {"agent_steps": agent_steps}}, agent_steps, None)
        write_whole(path, content, path.with_suffix(".new"))

    def pending(self) -> list[Path]:
        """The networks that wait to be evaluated, the oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def found(self, path: Path, record: Mapping[str, Any]) -> None:
        """Records the result of an evaluation and removes its network from the queue."""
        with (self._run_dir / EVALUATIONS_FILE).open("a") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(dict(record)))
        path.unlink(missing_ok=True)

    def video_path(self, agent_steps: int) -> Path:
        """Where a video of the network after ``agent_steps`` is written."""
        return self._run_dir / _VIDEOS / f"steps_{agent_steps:012d}.mp4"

    def video_of(self, agent_steps: int) -> Path | None:
        """The video of the network after ``agent_steps``, if there is one.

        Its path does not come from a file, and a link does not count, since trackers upload what they are given.
        """
        path = self.video_path(agent_steps)
        return path if path.is_file() and not path.is_symlink() and not path.parent.is_symlink() else None

    def failed(self, path: Path) -> bool:
        """Sets aside a network whose evaluation failed, so that it is not tried again.

        Returns:
            Whether it is the first one. Of several, only the newest is kept.
        """
        earlier = list(path.parent.glob("*.failed"))
        path.replace(path.with_suffix(".failed"))
        for each in earlier:
            each.unlink(missing_ok=True)
        return not earlier

    @property
    def nbytes(self) -> int:
        """Size of the results; it grows with each result."""
        try:
            return (self._run_dir / EVALUATIONS_FILE).stat().st_size
        except FileNotFoundError:
            return 0

    def records(self) -> list[dict[str, Any]]:
        """The results, by agent steps; of a network that was evaluated twice, the last."""
        path = self._run_dir / EVALUATIONS_FILE
        if not path.exists():
            return []
        by_steps = {}
        for line in path.read_bytes().splitlines():
            # A line that a full disk cut off or a disk damaged, or that Rollmill did not write.
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
                record = json.loads(line)
                by_steps[int(record["agent_steps"])] = record
        return [by_steps[steps] for steps in sorted(by_steps)]

"""The checkpoints of a run: when they are written, which are kept, which one a resume takes.

A file appears under its name by a rename, after its content has reached the disk, and older ones are removed only
after that; a kill at any instruction leaves the previous checkpoint in place. One process writes into a folder; any
number may read from it meanwhile.

Importing this module imports no torch: its functions do.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, Checked, integer
from rollmill.storage.checkpoint_file import (
    CheckpointError,
    CheckpointHeader,
    MetricName,
    encode_checkpoint,
    load_checkpoint,
    read_checkpoint,
    read_header,
    verify_checkpoint,
)
from rollmill.storage.whole_files import write_whole

_NAME = re.compile(r"checkpoint_(\d+)_steps_(\d+)(_end)?\.pt")
_TEMPORARY = ".writing-"
_TEMPORARY_BEST = ".best-"
# Characters: the header of a checkpoint has 4 KiB, of which one character may take 12 bytes.
_LONGEST_KIND = 200
_RANK_OF_METRIC: dict[MetricName, int] = {"training_return": 0, "evaluation_return": 1}

_log = logging.getLogger("rollmill.checkpoints")

_Read = TypeVar("_Read")


class CheckpointWarning(UserWarning):
    """A checkpoint file was skipped."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked, section="checkpoint"):
    """When checkpoints are written and which are kept.

    Attributes:
        every_s: Wall-clock seconds between two (120: Sample Factory 2.1.1); ``None`` for no such rule.
        every_steps: Agent steps between two; ``None`` for no such rule. With both, whichever comes first; with neither,
            only the end of the run writes one.
        keep: How many of the newest stay.
        keep_best: Whether the best one stays as well, as ``best.pt``: by the mean return of an evaluation where there
            are evaluations (``eval_every``), otherwise by that of the last 100 training episodes.
        keep_initial: Whether the one that is written before anything is learned stays as well, as ``initial.pt``: what
            training is measured against.
        save_environments: In lockstep, save the environments that can be pickled. False rebuilds all environments at
            every checkpoint, as is done with those that cannot be pickled: for environments that behave differently
            after they are unpickled.
    """

    every_s: float | None = setting(120.0, ABOVE_ZERO, "for no such rule")
    every_steps: int | None = setting(None, integer(1), "for no such rule")
    keep: int = setting(3, integer(1), "(a run without any cannot be resumed)")
    keep_best: bool = True
    keep_initial: bool = True
    save_environments: bool = True


class LoadedCheckpoint(NamedTuple):
    """A checkpoint's state, and the file it came from."""

    state: dict[str, Any]
    path: Path


class PreparedCheckpoint(NamedTuple):
    """A checkpoint that is still to be written.

    Attributes:
        content: The file's bytes.
        agent_steps: Agent steps consumed so far.
        metric: Mean return of the last 100 training episodes; None where there is none.
        is_initial: Nothing has been learned yet.
        is_end: The run cannot resume from here.
    """

    content: memoryview
    agent_steps: int
    metric: float | None
    is_initial: bool
    is_end: bool


class CheckpointStore:
    """The checkpoints of one run, in one folder: ``checkpoint_<number>_steps_<agent steps>.pt`` and ``best.pt``.

    The number counts saves, so that the newest is the last one written, also after a run resumed from an older one. A
    name that ends in ``_end`` marks the end of a run between two points that it can resume from: it can be evaluated,
    but not resumed.

    Args:
        folder: Created by the first save.
        config: When to write, what to keep.
        clock: Returns seconds, for ``is_due``.
    """

    def __init__(self, folder: Path | str, config: CheckpointConfig, *, clock: Callable[[], float] = time.monotonic):
        self.folder = Path(folder)
        self._config = config
        self._clock = clock
        self._saved_at_s = clock()
        self._saved_at_steps: int | None = None

    @property
    def best_path(self) -> Path:
        """The path of the best checkpoint, which may not exist."""
        return self.folder / "best.pt"

    @property
    def initial_path(self) -> Path:
        """The path of the untrained network, which may not exist."""
        return self.folder / "initial.pt"

    def paths(self, *, to_resume: bool = False) -> list[Path]:
        """Returns the numbered checkpoints, the newest first, whether or not they can be read.

        Args:
            to_resume: Leave out those that cannot be resumed.
        """
        if not self.folder.is_dir():
            return []
        numbered = [
            p for p in self.folder.iterdir() if (name := _NAME.fullmatch(p.name)) and not (to_resume and name[3])
        ]
        return sorted(numbered, key=_number, reverse=True)

    @property
    def lacks_state(self) -> bool:
        """Whether there are numbered checkpoints, none of which can be resumed, as in a folder that was published."""
        return bool(self.paths()) and not self.paths(to_resume=True)

    def mark_as_end(self, path: Path) -> None:
        """Rename a numbered checkpoint so that it can be evaluated, but not resumed.

        Raises:
            CheckpointError: It cannot be renamed.
        """
        try:
            path.rename(path.with_name(f"{path.stem}_end{path.suffix}"))
        except OSError as error:
            raise CheckpointError(f"could not rename {path}: {error}; correct the folder's permissions") from error

    def is_due(self, agent_steps: int) -> bool:
        """Whether the next checkpoint should be written now.

        Args:
            agent_steps: Consumed so far. Counting starts at the first call, or at the last save or load.
        """
        if self._saved_at_steps is None:
            self._saved_at_steps = agent_steps
        every_s, every_steps = self._config.every_s, self._config.every_steps
        return (every_s is not None and self._clock() - self._saved_at_s >= every_s) or (
            every_steps is not None and agent_steps - self._saved_at_steps >= every_steps
        )

    def save(
        self,
        state: Mapping[str, Any],
        agent_steps: int,
        metric: float | None = None,
        *,
        is_initial: bool = False,
        is_end: bool = False,
    ) -> Path:
        """Writes ``state`` as the newest checkpoint: :meth:`prepare`, then :meth:`write`, whose arguments these are.

        Raises:
            CheckpointError: As they raise it.
        """
        return self.write(self.prepare(state, agent_steps, metric, is_initial=is_initial, is_end=is_end))

    def prepare(
        self,
        state: Mapping[str, Any],
        agent_steps: int,
        metric: float | None = None,
        *,
        is_initial: bool = False,
        is_end: bool = False,
    ) -> PreparedCheckpoint:
        """Puts the bytes of a checkpoint together; ``state`` may change afterwards.

        Args:
            state: Tensors (of any device), numbers, strings, booleans and None, in dicts, lists and tuples.
            agent_steps: Agent steps consumed so far.
            metric: Mean return of the last 100 training episodes, of several tasks the mean of the tasks' means; None
                (or not finite) where there is none.
            is_initial: Nothing has been learned yet.
            is_end: The run cannot resume from here.

        Raises:
            CheckpointError: The state holds something that ``weights_only=True`` would not load.
        """
        if metric is not None and not math.isfinite(metric):
            metric = None
        content = encode_checkpoint(state, agent_steps, metric)
        return PreparedCheckpoint(content, agent_steps, metric, is_initial, is_end)

    def write(self, prepared: PreparedCheckpoint) -> Path:
        """Writes the newest checkpoint, updates the best one, and removes old ones; from one thread at a time.

        Returns:
            The new file.

        Raises:
            CheckpointError: The file cannot be written; earlier checkpoints are unchanged.
        """
        content, agent_steps, metric, is_initial, is_end = prepared
        number = 1 + max(map(_number, self.paths()), default=0)
        path = self.folder / f"checkpoint_{number:06d}_steps_{agent_steps:012d}{'_end' * is_end}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(f"{_TEMPORARY}*"):
                leftover.unlink(missing_ok=True)
            self._write(path, content)
            if metric is not None:
                self._keep_if_best(content, agent_steps, metric, "training_return")
            if self._config.keep_initial and is_initial:
                self._write(self.initial_path, content)
            kept = {path, *self.paths(to_resume=True)[: self._config.keep]}
            for old in self.paths():
                if old not in kept:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"could not write the checkpoint {path}: {error}; make room or correct the folder's permissions "
                "(earlier checkpoints are unchanged)"
            ) from error
        self._saved_at_s, self._saved_at_steps = self._clock(), agent_steps
        return path

    def offer_best(self, state: Mapping[str, Any], agent_steps: int, metric: float, of: str | None = None) -> bool:
        """Writes an evaluated network to ``best.pt``, unless an earlier evaluation of the same kind was better.

        Any return of an evaluation outranks those of training episodes: training explores, and its episodes come from
        many policies. This may be called by a process that does not save.

        Args:
            state: As for ``save``; the acting network is enough, since no run resumes from ``best.pt``.
            agent_steps: Agent steps that the network has learned from.
            metric: What the evaluation found, for example the mean return.
            of: What that is, in words. A network that was chosen by something else gives way.

        Returns:
            Whether it is the best now.

        Raises:
            CheckpointError: As for ``save``.
        """
        if not math.isfinite(metric):
            return False
        if of is not None and len(of) > _LONGEST_KIND:
            of = f"{of[:_LONGEST_KIND]}... ({hashlib.sha256(of.encode()).hexdigest()[:16]})"
        content = encode_checkpoint(state, agent_steps, metric, "evaluation_return", of)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return self._keep_if_best(content, agent_steps, metric, "evaluation_return", of)
        except OSError as error:
            raise CheckpointError(
                f"could not write {self.best_path}: {error}; make room or correct the folder's permissions"
            ) from error

    def load_latest(
        self,
        map_location: Any = "cpu",
        *,
        use: Callable[[dict[str, Any]], None] | None = None,
        to_resume: bool = False,
    ) -> LoadedCheckpoint:
        """Loads the newest complete checkpoint, with a ``CheckpointWarning`` for each newer one that is not.

        Args:
            map_location: Device to load tensors to, as for ``torch.load``.
            use: Called with its state; if it raises ``ValueError``, the checkpoint does not fit, and the one before it
                is tried.
            to_resume: Leave out those that cannot be resumed.

        Raises:
            CheckpointError: There is none, or none can be used.
        """

        def read(path: Path) -> tuple[CheckpointHeader, dict[str, Any]]:
            header, state = read_checkpoint(path, map_location)
            if use is not None:
                try:
                    use(state)
                except ValueError as error:
                    raise CheckpointError(f"{path} does not fit this run: {error}") from error
            return header, state

        (header, state), path = self._newest(read, warn=True, to_resume=to_resume)
        self._saved_at_s, self._saved_at_steps = self._clock(), header.agent_steps
        return LoadedCheckpoint(state, path)

    def latest_header(self, *, to_resume: bool = False) -> CheckpointHeader:
        """The header of the checkpoint that ``load_latest`` would load; without torch and without warnings.

        Args:
            to_resume: As for ``load_latest``.

        Raises:
            CheckpointError: There is none, or none is complete.
        """
        return self._newest(verify_checkpoint, warn=False, to_resume=to_resume)[0]

    def _newest(self, read: Callable[[Path], _Read], *, warn: bool, to_resume: bool) -> tuple[_Read, Path]:
        """The result of ``read`` for the newest checkpoint that it can read."""
        passed_over: dict[Path, str] = {}
        while paths := [p for p in self.paths(to_resume=to_resume) if p not in passed_over]:
            path = paths[0]
            try:
                return read(path), path
            except FileNotFoundError:
                # A reader may see a file that the writer then removes for a newer one: look again.
                if path not in self.paths():
                    continue
                reason = f"{path} is a link to nothing"
            except CheckpointError as error:
                reason = str(error)
            passed_over[path] = reason
            if warn:
                warnings.warn(f"{reason}; trying the one before it", CheckpointWarning, stacklevel=3)
        if not passed_over and to_resume and self.lacks_state:
            raise CheckpointError(
                f"the checkpoints in {self.folder} hold networks, but not the state to resume: start a new run with "
                "one (--init-from RUN_DIR)"
            )
        if not passed_over:
            raise CheckpointError(
                f"no checkpoint in {self.folder}: check the run directory, or start the run without --resume"
            )
        reasons = "; ".join(passed_over.values())
        raise CheckpointError(
            f"none of the {len(passed_over)} checkpoints in {self.folder} can be used ({reasons}): restore one from a "
            f"backup, or start the run in another directory"
        )

    def load_best(self, map_location: Any = "cpu") -> LoadedCheckpoint:
        """Loads ``best.pt``.

        Raises:
            CheckpointError: There is none, or it is not complete.
        """
        try:
            return LoadedCheckpoint(load_checkpoint(self.best_path, map_location), self.best_path)
        except FileNotFoundError:
            raise CheckpointError(
                f"no best checkpoint in {self.folder}: there was no evaluation yet (eval_every), none was saved after "
                f"100 training episodes had ended, or checkpoint.keep_best is off; use the latest"
            ) from None

    def _keep_if_best(
        self, content: memoryview, agent_steps: int, metric: float, name: MetricName, of: str | None = None
    ) -> bool:
        """Writes a checkpoint to ``best.pt`` if it is at least as good as the present one."""
        if not self._config.keep_best:
            return False
        with self._best_locked():
            before = self._best_header()
            # Numbers of another kind cannot be compared: the newest one counts.
            is_comparable = before is None or None in (of, before.metric_of) or of == before.metric_of
            if (
                before is not None
                and is_comparable
                and (_RANK_OF_METRIC[name], metric)
                < (
                    _RANK_OF_METRIC[before.metric_name or "training_return"],
                    -math.inf if before.metric is None else before.metric,
                )
            ):
                return False
            # With a temporary name of its own: the next save removes those of other checkpoints.
            write_whole(self.best_path, content, self.folder / f"{_TEMPORARY_BEST}{os.getpid()}")
        _log.info("best.pt is of %s agent steps, by %s %.6g", f"{agent_steps:,}", name, metric)
        return True

    @contextlib.contextmanager
    def _best_locked(self) -> Iterator[None]:
        """Locks ``best.pt``, so that one process at a time compares and replaces it."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # Some network file systems have no locks.
                fcntl.flock(folder, fcntl.LOCK_EX)
            for leftover in self.folder.glob(f"{_TEMPORARY_BEST}*"):
                leftover.unlink(missing_ok=True)
            yield
        finally:
            os.close(folder)

    def _best_header(self) -> CheckpointHeader | None:
        """The header of ``best.pt``; None if there is none that can be read."""
        try:
            return read_header(self.best_path)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            warnings.warn(f"{error}; it will be replaced", CheckpointWarning, stacklevel=4)
            return None

    def _write(self, path: Path, content: memoryview) -> None:
        """Writes ``path`` atomically: write a temporary file, sync, rename, sync the folder."""
        write_whole(path, content, self.folder / f"{_TEMPORARY}{os.getpid()}")


def _number(path: Path) -> int:
    """The number of the save in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])

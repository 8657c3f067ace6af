"""The learner's loop: run the trainer's SGD steps, publish weights, report, save checkpoints.

The trainer decides what to learn from: batches of trajectories (:mod:`rollmill.learning.on_policy_trainer`), a replay
(:mod:`rollmill.learning.replay_trainer`) or the gradients of several learners
(:mod:`rollmill.learning.gradient_server`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.targets import NonFiniteSampleError
from rollmill.learning.batch_loader import POLL_S, ReadyBatches
from rollmill.learning.league import League
from rollmill.learning.live_numbers import Request
from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.learning.progress import LearnerSetup, RunSteps
from rollmill.learning.report import CheckpointWritten, LearnerFinished, LearnerReport
from rollmill.learning.timetable import Timetable
from rollmill.learning.versions import Versions
from rollmill.models.flat_state import FlatState
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.storage.background_writes import BackgroundWrites
from rollmill.storage.episodes import episodes_of, plain_episodes
from rollmill.storage.weights import WeightStore

_NO_ROW = (-1, -1)
_SAVED_PARTS = ("model", "counters", "recent_episodes", "random")


class Member(Protocol):
    """A policy as population-based training sees it (:mod:`rollmill.pbt`)."""

    def figures(self) -> dict[str, float | None]:
        """Return columns for the policy's metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain numbers and strings."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        ...


class Trainer(Protocol):
    """Runs SGD steps.

    Attributes:
        is_stopped_by_others: Whether another rank's stop request set the stop flag.
        can_resume: Whether no work is half done, so that a checkpoint can be resumed.
    """

    is_stopped_by_others: bool
    can_resume: bool

    def begin(self) -> None:
        """Prepare; called once, after restoring the newest checkpoint and before publishing the first weights."""
        ...

    def session(self) -> AbstractContextManager[None]:
        """Context manager for resources that are needed during training."""
        ...

    def advance(self, learner: Learner, wait_s: float) -> bool:
        """Run the next SGD steps, and call ``learner.after_step`` after each.

        Args:
            learner: The learner.
            wait_s: Maximum seconds to wait for data.

        Returns:
            Whether to continue.
        """
        ...

    def check(self) -> None:
        """Raise if a gradient since the last check was not finite."""
        ...

    def count(self, *, to_save: bool = False) -> None:
        """Update the run's agent steps; ``to_save`` counts them for a checkpoint."""
        ...

    def moments(self) -> tuple[float, float]:
        """Return the mean and standard deviation that values are normalised with."""
        ...

    def fill(self, report: LearnerReport) -> LearnerReport:
        """Add the trainer's figures to a report; means since the last row if ``report.is_row``."""
        ...

    def take_over(self, other: Trainer, *, first_version: int) -> None:
        """Continue from another policy's optimisers and schedules, after its weights have been copied.

        Args:
            other: Of the same kind, for the same networks.
            first_version: The first version with these weights; samples of older ones are not learned from.
        """
        ...

    def load_optimisers(self, state: Mapping[str, Any]) -> None:
        """Begin with the optimisers of another run: the entry ``updater`` of its :meth:`state_dict`.

        Raises:
            ValueError: They are of another kind, or of another network.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the algorithm's state and the counters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`.

        Raises:
            ValueError: It belongs to another kind of trainer or optimiser.
        """
        ...


def run_in_turn(
    learners: Sequence[Learner],
    steps: RunSteps | None = None,
    ready: ReadyBatches | None = None,
    *,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Run the learners of a process, each until it has nothing more to do; they take turns, batch by batch.

    In rounds, each waits for its next batch before the one after it gets its turn. Otherwise those without a batch are
    passed over, and the process waits where none has one.

    Args:
        learners: One for each policy that the process learns.
        steps: The agent steps of all of them, which say whether they take turns in rounds; None for one learner.
        ready: The batches that are ready for any of them; None for one learner.
        between: Called before each round or turn, when every learner is between two batches.
    """
    ready = ready or ReadyBatches()
    with ExitStack() as sessions:
        for learner in learners:
            sessions.enter_context(learner.start())
        active = list(learners)
        while active:
            try:
                between()
                if steps is not None and steps.in_rounds:
                    steps.begin_round()
                    active = [learner for learner in active if _learn_next_batch(learner)]
                else:
                    ready.arrived.clear()  # Before the learners look for batches, so that none is missed.
                    before = _batches(learners)
                    active = [learner for learner in active if learner.turn(0.0 if len(active) > 1 else POLL_S)]
                    if len(active) > 1 and _batches(learners) == before:
                        ready.arrived.wait(POLL_S)
            except (NonFiniteGradientError, NonFiniteSampleError):
                for learner in learners:  # Gradients that are not finite are not applied: all weights are valid.
                    learner.save_after_failure()
                raise
    for learner in learners:
        learner.finish()


def _batches(learners: Sequence[Learner]) -> int:
    return sum(learner.progress.batches for learner in learners)


def _learn_next_batch(learner: Learner) -> bool:
    """Give a learner turns until it has learned from a batch; returns whether to continue."""
    before = learner.progress.batches
    while learner.turn(POLL_S):
        if learner.progress.batches > before:
            return True
    return False


class Learner:
    """Owns a policy: its weights, counters, reports and checkpoints. :func:`run_in_turn` runs it.

    Args:
        setup: The process, the run and its counters.
        weights: The store to publish versions in.
        algorithm: The algorithm, on its device.
        trainer: Runs the SGD steps.
        versions: How versions are numbered, and when they are published.
        timetable: When rows of metrics and checkpoints are due.
        league: The past selves; None without a bank.
        member: What population-based training knows about the policy; None without it.
        writes: Writes checkpoints while the learner goes on, one at a time of all learners of the process; None writes
            them at once, as lockstep needs it.
    """

    def __init__(
        self,
        setup: LearnerSetup,
        weights: WeightStore,
        algorithm: Algorithm,
        *,
        trainer: Trainer,
        versions: Versions,
        timetable: Timetable,
        league: League | None = None,
        member: Member | None = None,
        writes: BackgroundWrites | None = None,
    ) -> None:
        """Restore the newest checkpoint when resuming, and publish the first weights."""
        self._setup = setup
        self._ledger = setup.ledger
        self._weights = weights
        self._algorithm = algorithm
        self._trainer = trainer
        self._versions = versions
        self._timetable = timetable
        self._league = league
        self._member = member
        self._writes = writes
        self._writing: Future[Path] | None = None
        self.progress = setup.progress
        self._plan = setup.plan
        self._reported_at = 0.0
        self._row_at = _NO_ROW
        if setup.plan.resume:
            self._restore()
        trainer.begin()
        self._flat = FlatState(algorithm.acting, alias=False)
        self.publish()

    def start(self) -> AbstractContextManager[None]:
        """Send the first report, and return the context manager of the training session."""
        if not self.progress.agent_steps:
            self._save()
        self._leave_for_evaluation()
        # Reports the compute settings, and starts the clock of the throughput.
        self._send(self._report(is_row=self._has_new_row))
        return self._trainer.session()

    def turn(self, wait_s: float) -> bool:
        """Run the trainer's next SGD steps, then report and save if due.

        Args:
            wait_s: Maximum seconds that the trainer waits for data.

        Returns:
            Whether to continue: False if the trainer is done or the stop flag is set.
        """
        numbers = self._setup.numbers
        try:
            self._ledger.enter(LearnerPhase.WAITING)
            if not self._trainer.advance(self, wait_s):
                self._trainer.check()
                return False
        except (NonFiniteGradientError, NonFiniteSampleError) as error:
            if self._plan.policy_name:
                error.args = (f"policy {self._plan.policy_name!r}: {error}",)
            raise
        self._trainer.count()
        self._leave_for_evaluation(is_asked=numbers.take_request(Request.EVALUATION))
        self._report_if_due()
        self._announce_written()
        if numbers.take_request(Request.CHECKPOINT):
            self._save()
        elif self._timetable.is_save_due(self.progress) and (self._writes is None or not self._writes.is_busy):
            self._save(writes=self._writes)
        return True

    def save_after_failure(self) -> None:
        """Save the weights before the run ends with an error."""
        self._save(is_failing=True)

    def become(self, other: Learner) -> None:
        """Replace weights, normalisers and optimisers by another policy's, between two batches.

        Samples that were collected with the replaced weights are not learned from. In async and replay the new weights
        are published at once, in lockstep with the next iteration.
        """
        self._algorithm.load_state_dict(other._algorithm.state_dict())
        self._trainer.take_over(other._trainer, first_version=self._published + 1)
        if self._league is not None and other._league is not None:
            self._league.take_over(other._league)
        self.progress.generation += 1
        self.progress.recent_episodes = []  # Those of the replaced weights.
        self.publish_if_newer()

    def finish(self) -> None:
        """Publish and save the last weights, and send the last report."""
        self.publish_if_newer()
        path = self._save()
        self._leave_for_evaluation(is_end=True)
        last = replace(self._report(is_row=True), is_row=self._has_new_row)
        self._setup.context.send(LearnerFinished(last, str(path), self._trainer.is_stopped_by_others))

    # --- Called by the trainer.

    @property
    def rating(self) -> float | None:
        """The policy's rating; None without other players."""
        return None if self._league is None else self._league.rating

    @property
    def version(self) -> int:
        """Version number of the current weights."""
        return self._versions.number(self.progress)

    def after_step(self) -> None:
        """Count an SGD step, and publish if due."""
        self.progress.sgd_steps += 1
        self._ledger.add(LearnerCounter.SGD_STEPS, 1)
        if self._versions.is_due(self.version, self._published):
            self.publish()

    def publish(self) -> None:
        """Publish the current weights as the newest version."""
        self._ledger.enter(LearnerPhase.PUBLISHING)
        self._flat.pack()
        if self._league is not None:
            # First: who acts with this version may ask at once whom to meet.
            self._league.publish(self.progress.agent_steps, self.version, self._flat.bytes)
        self._weights.publish(self.version, self._flat.bytes)
        self._published = self.version
        self._versions.published(self.version, self._flat.bytes, self._trainer.moments())

    def publish_if_newer(self) -> None:
        """Publish the weights of the last SGD step if they are not published yet."""
        if self._published < self.version:
            self.publish()

    # --- Reports.

    def _report_if_due(self) -> None:
        is_time = time.monotonic() - self._reported_at >= self._plan.report_every_s
        if self._has_new_row and self._timetable.is_row_due(self.progress, self._row_at[0], is_time=is_time):
            self._send(self._report(is_row=True))
        elif is_time:
            self._send(self._report(is_row=False))

    @property
    def _has_new_row(self) -> bool:
        """Whether anything has been learned, or collected, since the last row."""
        return self._row_at != (self.progress.batches, self.progress.agent_steps)

    def _report(self, *, is_row: bool) -> LearnerReport:
        self._trainer.count()
        progress = self.progress
        report = self._trainer.fill(
            LearnerReport(
                agent_steps=progress.agent_steps,
                batches=progress.batches,
                sgd_steps=progress.sgd_steps,
                policy_version=self._published,
                episodes=progress.episodes,
                recent_episodes=tuple(progress.recent_episodes),
                policy=self._plan.policy,
                is_row=is_row,
            )
        )
        return report if self._member is None else replace(report, figures={**report.figures, **self._member.figures()})

    def _send(self, report: LearnerReport) -> None:
        self._ledger.enter(LearnerPhase.REPORTING)
        self._setup.clock.start()
        self._setup.context.send(replace(report, training_s=self._setup.clock.seconds))
        self._reported_at = time.monotonic()
        if report.is_row:
            self._row_at = (self.progress.batches, self.progress.agent_steps)

    # --- Checkpoints.

    def _leave_for_evaluation(self, *, is_end: bool = False, is_asked: bool = False) -> None:
        queue = self._plan.evaluations
        if queue is None:
            return
        if is_asked or (is_end and queue.is_scheduled) or queue.is_due(self.progress.agent_steps):
            self._ledger.enter(LearnerPhase.SAVING)
            queue.leave(self._algorithm.state_dict(), self.progress.agent_steps)

    def _announce_written(self, *, waits: bool = False) -> None:
        """Tell the main process of a checkpoint that was written in the background, or wait for it first."""
        if self._writing is not None and (waits or self._writing.done()):
            writing, self._writing = self._writing, None
            self._setup.context.send(CheckpointWritten(str(writing.result())))

    def _save(self, *, is_failing: bool = False, writes: BackgroundWrites | None = None) -> Path | None:
        """Write a checkpoint on rank 0; called by every rank together, or by a failing rank alone.

        Its metric is :attr:`rollmill.learning.progress.Progress.recent_return`.

        Args:
            is_failing: Whether the run ends with an error.
            writes: Writes the file in the background.

        Returns:
            The file; None on other ranks, and for one that is still to be written.
        """
        self._ledger.enter(LearnerPhase.SAVING)
        self._announce_written(waits=True)
        progress = self.progress
        self._trainer.count(to_save=True)
        in_flight = self._versions.pack(progress, can_resume=self._trainer.can_resume, is_failing=is_failing)
        path = None
        if not self._setup.collective.rank:
            prepared = self._plan.checkpoints.prepare(
                {
                    "model": self._algorithm.state_dict(),
                    "recent_episodes": plain_episodes(replace(e, objective=None) for e in progress.recent_episodes),
                    "training_s": self._setup.clock.seconds,
                    "numbers": self._setup.numbers.state_dict(),
                    **({} if self._member is None else {"member": self._member.state_dict()}),
                    **(trainer_state := self._trainer.state_dict()),
                    "counters": progress.counters() | trainer_state.get("counters", {}),
                    **(in_flight or {}),
                },
                agent_steps=progress.agent_steps,
                metric=progress.recent_return,
                is_initial=progress.sgd_steps == 0,
                is_end=in_flight is None,
            )
            if writes is None:
                path = self._plan.checkpoints.write(prepared)
                self._setup.context.send(CheckpointWritten(str(path)))
            else:
                self._writing = writes.submit(partial(self._plan.checkpoints.write, prepared))
        if not is_failing:
            self._timetable.saved(progress)
            self._versions.saved(progress)
        return path

    def _restore(self) -> None:
        """Restore rank 0's newest readable checkpoint of this network, on every rank."""
        state = None
        if not self._setup.collective.rank:
            state = self._plan.checkpoints.load_latest(use=self._take_over, to_resume=True).state
        if self._setup.collective.world_size > 1:
            state = self._setup.collective.broadcast(state)
            assert state is not None
            if self._setup.collective.rank:
                self._take_over(state)

    def _take_over(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state.

        Raises:
            ValueError: It belongs to another network or optimiser; the next attempt overwrites partially loaded state.
        """
        if missing := [part for part in _SAVED_PARTS if part not in state]:
            raise ValueError(f"it lacks {', '.join(missing)}, so another kind of run wrote it")
        self._versions.check_saved(state)  # First, because the league publishes what it restores.
        try:
            self._algorithm.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"it belongs to another network: {error}") from error
        episodes = episodes_of(state["recent_episodes"])
        self.progress.restore(state["counters"], episodes, least_episodes=self._plan.episodes)
        self._setup.clock.restore(state.get("training_s", 0.0))  # missing in checkpoints of earlier versions
        self._trainer.load_state_dict(state)
        if "numbers" in state:  # missing in checkpoints of earlier versions
            self._setup.numbers.load_state_dict(state["numbers"])
        if self._member is not None and "member" in state:
            self._member.load_state_dict(state["member"])
        self._versions.restore(state, self._weights)
        if not self._timetable.repeats_rows:
            self._row_at = (self.progress.batches, self.progress.agent_steps)

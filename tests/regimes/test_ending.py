"""The end of a run: its reason, and which ends of processes are failures."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.regimes import ending_targets as targets

import rollmill
from rollmill.callback import Callback, LiveRun
from rollmill.learning.live_numbers import add_numbers_to_layout, control_block
from rollmill.learning.report import LearnerFinished, LearnerReport
from rollmill.regimes import ending
from rollmill.regimes.callbacks import Callbacks
from rollmill.regimes.ending import EndedBy, exited_early, was_signalled_with_us, watch
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.policy_reports import PolicyReports
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.reporting.metrics import Record
from rollmill.roles import EVALUATOR, LEARNER
from rollmill.runtime import signals
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart
from rollmill.runtime.events import Event, Exited, Failed, Handle, ProcessFailed, ProcessHung
from rollmill.runtime.supervisor import Supervisor
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

PROBED = Probed(
    EnvSpec(
        name="any",
        observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    (NetworkSizes(0, 0, 0),),
)
WORKER = Handle("rollout worker 0", 1, 0)


class Seen(Callback):
    """Keeps the checkpoints that it was told of."""

    def __init__(self) -> None:
        self.checkpoints: list[Path] = []

    def on_checkpoint(self, run: LiveRun, path: Path) -> None:
        self.checkpoints.append(path)


class Watched(NamedTuple):
    """What became of a run."""

    finished: LearnerFinished
    ended_by: EndedBy
    grace_s: float
    reports: list[LearnerReport]
    rows: list[Record]
    checkpoints: list[Path]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as entered:
        yield entered


def watched(
    supervisor: Supervisor,
    wanted_end: Callable[[], EndedBy | None] = lambda: None,
    memory: tuple[MemoryPart, ...] = (),
    **settings: Any,
) -> Watched:
    config = rollmill.make_config("gym/CartPole-v1", settings).resolved()
    layout = ArenaLayout()
    add_numbers_to_layout(layout)
    control = control_block(Arena.create(layout), create=True)
    seen, reports, rows = Seen(), [], []
    monitor = Monitor(
        config,
        PROBED,
        writer=None,
        display=None,
        on_report=lambda report, seconds: reports.append(report),
        on_row=rows.append,
    )
    callbacks = Callbacks([seen], LiveRun(Path("runs/a"), config, {"0": control}, start_evaluator=lambda: None))
    ended = watch(supervisor, config, monitor, PolicyReports(["0"]), callbacks, wanted_end, memory=memory)
    return Watched(*ended, reports, rows, seen.checkpoints)


def start_learner(supervisor: Supervisor, *, is_patient: bool, stopped_by_others: bool = False) -> None:
    supervisor.start(LEARNER.name, targets.learner, is_patient, stopped_by_others, role=LEARNER)


def test_a_run_that_reaches_its_last_step_ends_by_itself(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    start_learner(supervisor, is_patient=False)
    with caplog.at_level(logging.INFO, "rollmill.run"):
        found = watched(supervisor)
    assert found.ended_by == "total_steps"
    assert found.finished.checkpoint == "runs/a/checkpoint_2.pt"
    assert found.grace_s == 8.0
    assert found.checkpoints == [Path("runs/a/checkpoint_1.pt")]
    assert [report.agent_steps for report in found.reports] == [8], "the last report is not passed on yet"
    assert "mind the gap" in caplog.messages
    assert not supervisor.stop_flag.is_set()


class Patient(Supervisor):
    """Looks at its processes only when one has ended."""

    def poll(self, timeout: float = 0.0) -> list[Event]:
        events: list[Event] = []
        while not any(isinstance(event, Exited) for event in events):
            events += super().poll(0.1)
        return events


def test_what_comes_behind_the_last_message_is_taken_in() -> None:
    with Patient() as supervisor:
        supervisor.start(LEARNER.name, targets.talkative_learner, role=LEARNER)
        found = watched(supervisor)
    assert found.ended_by == "total_steps"
    assert found.checkpoints == [Path("runs/a/checkpoint_1.pt"), Path("runs/a/checkpoint_2.pt")]


@pytest.mark.parametrize("wanted", ["target_return", "callback", "caller", "signal"])
def test_a_run_that_is_asked_to_end_says_by_whom(supervisor: Supervisor, wanted: EndedBy) -> None:
    start_learner(supervisor, is_patient=True)
    found = watched(supervisor, lambda: wanted)
    assert found.ended_by == wanted
    assert supervisor.stop_flag.is_set()
    # A user at a terminal waits at most ten seconds for the end of a run.
    assert found.grace_s == 8.0 if wanted in ("target_return", "callback") else 0.0 <= found.grace_s <= 6.5


def test_a_signal_that_only_the_learner_has_received_ends_the_run(supervisor: Supervisor) -> None:
    start_learner(supervisor, is_patient=True)
    supervisor.stop_flag.set()  # As the learner does.
    assert watched(supervisor).ended_by == "signal"


def test_another_ranks_stop_is_the_callers(supervisor: Supervisor) -> None:
    start_learner(supervisor, is_patient=True, stopped_by_others=True)
    supervisor.stop_flag.set()
    assert watched(supervisor).ended_by == "caller"


def test_a_run_ends_when_its_time_is_up(supervisor: Supervisor) -> None:
    start_learner(supervisor, is_patient=True)
    assert watched(supervisor, max_seconds=0.1).ended_by == "max_seconds"


def test_the_first_failure_ends_all_processes_with_its_traceback(supervisor: Supervisor) -> None:
    start_learner(supervisor, is_patient=True)
    supervisor.start(WORKER.name, targets.fails)
    with pytest.raises(ProcessFailed, match=r"^rollout worker 0 \(pid \d+\) .*ValueError") as error:
        watched(supervisor)
    assert "the third wheel is loose" in error.value.traceback
    assert supervisor.handles == []


@pytest.mark.parametrize(
    ("target", "says"),
    [(targets.exits, "failed: SystemExit: 0"), (targets.returns, "exited with code 0 before its work was done")],
)
def test_a_worker_that_ends_too_early_is_named(
    supervisor: Supervisor, target: Callable[..., object], says: str
) -> None:
    start_learner(supervisor, is_patient=True)
    supervisor.start(WORKER.name, target)
    with pytest.raises(ProcessFailed, match=rf"rollout worker 0 \(pid \d+\) {says}"):
        watched(supervisor)


def test_a_process_that_lacks_memory_is_explained_with_what_is_known_of_the_run(supervisor: Supervisor) -> None:
    start_learner(supervisor, is_patient=True)
    supervisor.start(WORKER.name, targets.lacks_memory)
    with pytest.raises(ProcessFailed, match=r"Known of this run: 3.0 GiB for 12 slots\."):
        watched(supervisor, memory=(MemoryPart("12 slots", 3 << 30),))


def test_training_goes_on_without_a_failed_evaluator(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    start_learner(supervisor, is_patient=True)
    supervisor.start(EVALUATOR.name, targets.fails, role=EVALUATOR)
    begun = time.monotonic()

    def is_noted() -> bool:
        return any(text.startswith("evaluations stop, training continues: ") for text in caplog.messages)

    with caplog.at_level(logging.INFO, "rollmill.run"):
        found = watched(supervisor, lambda: "callback" if is_noted() or time.monotonic() > begun + 30 else None)
    assert is_noted()
    assert found.ended_by == "callback"


def test_a_hung_learner_ends_the_run_with_the_setting_that_limits_it(supervisor: Supervisor) -> None:
    supervisor.start(LEARNER.name, targets.hangs, role=LEARNER)
    with pytest.raises(ProcessHung, match=r"learner .* hangs: .*'learning'.*learner.step_timeout_s") as error:
        watched(supervisor, **{"learner.step_timeout_s": 0.2})
    assert "ending_targets.py" in error.value.traceback


def test_a_learner_that_does_not_end_in_time_is_killed(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_END_WITHIN_S", 0.2)
    supervisor.start(LEARNER.name, targets.stuck, True, role=LEARNER)
    with pytest.raises(ProcessHung, match=r"did not end within 0.2 s of .*: it is in phase 'saving'\.") as error:
        watched(supervisor, lambda: "signal")
    assert "in stuck" in error.value.traceback
    assert supervisor.handles == []


def test_a_run_that_is_interrupted_before_it_has_learned_loses_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_END_WITHIN_S", 0.2)
    supervisor.start(LEARNER.name, targets.stuck, False, role=LEARNER)
    with pytest.raises(KeyboardInterrupt):
        watched(supervisor, lambda: "signal")
    supervisor.stop(grace_s=0.0)


def test_an_early_exit_is_a_failure_that_says_so() -> None:
    failed = exited_early(Exited(WORKER))
    assert str(failed.error()) == (
        "rollout worker 0 (pid 1) exited with code 0 before its work was done: something in it called exit."
    )


def test_only_sigterm_is_a_signal_to_the_whole_run() -> None:
    killed = {number: Failed(WORKER, "killed", "", killed_by=number) for number in (0, signal.SIGKILL, signal.SIGTERM)}
    assert not was_signalled_with_us(killed[0], lambda: True)
    assert not was_signalled_with_us(killed[signal.SIGKILL], lambda: True)
    assert was_signalled_with_us(killed[signal.SIGTERM], lambda: True)


def test_the_own_signal_may_come_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_TO_ALL_WITHIN_S", 0.2)
    killed = Failed(WORKER, "killed", "", killed_by=signal.SIGTERM)
    begun = time.monotonic()
    assert was_signalled_with_us(killed, lambda: time.monotonic() > begun + 0.05)
    begun = time.monotonic()
    assert not was_signalled_with_us(killed, lambda: False)
    assert 0.1 < time.monotonic() - begun < 5.0

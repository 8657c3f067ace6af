"""The threads of trackers: what they get, and that none of them can hold a run up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollmill.tracking import trackers as module
from rollmill.tracking.base import FileKind, TrackedRun
from rollmill.tracking.config import TrackingConfig
from rollmill.tracking.registry import TRACKERS
from rollmill.tracking.trackers import Trackers


class Recorder:
    """Keeps what it is given, and does at each call what a test wants."""

    place = "in memory"

    def __init__(self, run: TrackedRun, at_call: Callable[[], object] = lambda: None) -> None:
        self.run = run
        self.id: str | None = run.resume_id or "new"
        self.calls: list[tuple[Any, ...]] = []
        self._at_call = at_call

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        self.calls.append((dict(numbers), agent_steps, policy))
        self._at_call()

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        self.calls.append((path.name, kind, name, agent_steps, policy))

    def finish(self, ended_by: str) -> None:
        self.calls.append((ended_by,))


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    factories = dict(TRACKERS.factories)
    monkeypatch.setattr(TRACKERS, "factories", factories)
    return factories.__setitem__


def tracked(directory: Path, *names: str, is_resumed: bool = False, timeout_s: float = 60.0) -> TrackedRun:
    settings = TrackingConfig(trackers=names, call_timeout_s=timeout_s)
    return TrackedRun(directory=directory, name="run", config={"seed": 1}, settings=settings, is_resumed=is_resumed)


def test_each_tracker_gets_everything_in_order(tmp_path: Path, register: Callable[..., None]) -> None:
    made: list[Recorder] = []
    notes: list[str] = []

    def make(run: TrackedRun) -> Recorder:
        made.append(Recorder(run))
        return made[-1]

    register("one", make)
    register("two", make)
    with Trackers(tracked(tmp_path, "one", "two"), note=notes.append) as trackers:
        trackers.log({"loss/policy": 1.0}, 10)
        trackers.log({"loss/policy": 2.0}, 20, "a")
        trackers.log_file(tmp_path / "v.mp4", "video", "evaluation", 20, "a")
        trackers.ended("total_steps")
    for one in made:
        assert one.run.resume_id is None
        assert one.calls == [
            ({"loss/policy": 1.0}, 10, None),
            ({"loss/policy": 2.0}, 20, "a"),
            ("v.mp4", "video", "evaluation", 20, "a"),
            ("total_steps",),
        ]
    assert sorted(notes) == ["tracker one: in memory", "tracker two: in memory"]


def test_a_resumed_run_gets_its_id_and_a_new_one_does_not(tmp_path: Path, register: Callable[..., None]) -> None:
    ids: list[str | None] = []

    def make(run: TrackedRun) -> Recorder:
        ids.append(run.resume_id)
        return Recorder(run)

    register("one", make)
    for is_resumed in (False, True, False):
        with Trackers(tracked(tmp_path, "one", is_resumed=is_resumed), note=lambda text: None):
            pass
    assert ids == [None, "new", None]


@pytest.mark.parametrize(
    ("error", "ended_by"), [(ValueError, "failure"), (KeyboardInterrupt, "signal"), (None, "failure")]
)
def test_how_the_run_ended(
    tmp_path: Path, register: Callable[..., None], error: type[BaseException] | None, ended_by: str
) -> None:
    made: list[Recorder] = []
    register("one", lambda run: made.append(Recorder(run)) or made[-1])
    try:
        with Trackers(tracked(tmp_path, "one"), note=lambda text: None):
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt) as raised:
        assert type(raised) is error  # noqa: PT017  the block may raise nothing
    assert made[0].calls == [(ended_by,)]


def _raise() -> None:
    raise RuntimeError("no route to host\nand more")


def _exit() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(("fail", "why"), [(_raise, "RuntimeError: no route to host"), (_exit, "SystemExit: 3")])
@pytest.mark.parametrize("at_start", [True, False])
def test_a_tracker_that_raises_is_left_out_and_says_so_once(
    tmp_path: Path, register: Callable[..., None], fail: Callable[[], None], why: str, at_start: bool
) -> None:
    notes: list[str] = []
    made: list[Recorder] = []

    def bad(run: TrackedRun) -> Recorder:
        if at_start:
            fail()
        return Recorder(run, fail)

    register("bad", bad)
    register("good", lambda run: made.append(Recorder(run)) or made[-1])
    with Trackers(tracked(tmp_path, "bad", "good"), note=notes.append) as trackers:
        for steps in range(3):
            trackers.log({"x": 1.0}, steps)
            time.sleep(0.05)
        trackers.ended("total_steps")
    failures = [note for note in notes if note.startswith("tracker bad failed")]
    assert failures == [f"tracker bad failed, and the run continues without it: {why}"]
    assert len(made[0].calls) == 4


@pytest.mark.parametrize("at_start", [True, False])
def test_a_tracker_that_hangs_holds_nothing_up(tmp_path: Path, register: Callable[..., None], at_start: bool) -> None:
    notes: list[str] = []
    hang = threading.Event()
    calls: list[Recorder] = []

    def slow(run: TrackedRun) -> Recorder:
        if at_start:
            hang.wait()
        calls.append(Recorder(run, hang.wait))
        return calls[-1]

    register("slow", slow)
    before = time.monotonic()
    with Trackers(tracked(tmp_path, "slow", timeout_s=0.5), note=notes.append) as trackers:
        for steps in range(5):
            trackers.log({"x": 1.0}, steps)
        assert time.monotonic() - before < 0.4
        trackers.ended("total_steps")
    assert time.monotonic() - before < 5.0
    hang.set()
    failures = [note for note in notes if "failed" in note or "not finished" in note]
    assert failures == [
        "tracker slow failed, and the run continues without it: a call has not returned within 0.5 s "
        "(tracking.call_timeout_s)"
    ]
    if calls:
        time.sleep(0.2)
        assert len(calls[0].calls) == 1, "it does nothing more, should the call return"


def test_a_tracker_that_falls_behind_is_left_out(
    tmp_path: Path, register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    notes: list[str] = []
    hang = threading.Event()
    register("slow", lambda run: Recorder(run, hang.wait))
    with Trackers(tracked(tmp_path, "slow"), note=notes.append) as trackers:
        for steps in range(6):
            trackers.log({"x": 1.0}, steps)
    hang.set()
    assert [note for note in notes if "failed" in note] == [
        "tracker slow failed, and the run continues without it: it is 3 calls behind"
    ]


def test_who_is_told_to_end_waits_for_a_moment_only(
    tmp_path: Path, register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHORT_S", 0.3)
    notes: list[str] = []
    hang = threading.Event()
    register("slow", lambda run: Recorder(run, hang.wait))
    for ended_by, is_told in (("signal", False), ("total_steps", True)):
        before = time.monotonic()
        run = tracked(tmp_path, "slow")
        with Trackers(run, note=notes.append, is_stop_wanted=partial(bool, is_told)) as trackers:
            trackers.log({"x": 1.0}, 1)
            trackers.ended(ended_by)
        assert time.monotonic() - before < 5.0
    hang.set()
    assert [note for note in notes if "not finished in time" in note] == [
        "tracker slow: not finished in time; the end of the run may be missing there"
    ] * 2

"""Accounts of time: nothing lost, nothing counted twice, read while they are written."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import runtime_targets

from rollmill.runtime.events import Message
from rollmill.runtime.ledger import (
    ROW,
    START,
    Ledger,
    LedgerBoard,
    LedgerSeat,
    ProcessAccount,
    Role,
    between,
)
from rollmill.runtime.supervisor import Supervisor

ROLE = Role(name="worker", phases=("work", "wait", "rest"), counters=("items", "errors"), waiting=frozenset({"wait"}))


def test_each_phase_gets_the_time_that_passed_in_it() -> None:
    board = LedgerBoard(4)
    # (clock before the change, clock after it, phase that begins)
    changes: list[tuple[float, float, str]] = []

    def change(phase: str, action: Callable[[], object]) -> None:
        before = time.monotonic()
        action()
        changes.append((before, time.monotonic(), phase))

    seats: list[LedgerSeat] = []
    change(START, lambda: seats.append(board.seat("worker 0", ROLE)))
    ledger = seats[0].open()
    for number in (0, 1, 0, 2, 1, 1, 0):
        time.sleep(0.002)
        change(ROLE.phases[number], lambda number=number: ledger.enter(number))  # type: ignore[misc]
    accounts: list[ProcessAccount] = []
    change("end", lambda: accounts.append(board.account(seats[0])))
    account = accounts[0]
    least = dict.fromkeys((*ROLE.phases, START), 0.0)
    most = dict(least)
    for (before, after, phase), (next_before, next_after, _) in itertools.pairwise(changes):
        least[phase] += next_before - after
        most[phase] += next_after - before
    for phase, seconds in account.phases.items():
        assert least[phase] - 1e-9 <= seconds <= most[phase] + 1e-9
    assert account.current_phase == "work"
    assert changes[0][0] <= account.alive_since <= changes[0][1]
    assert changes[-2][0] - 1e-9 <= account.current_since <= changes[-2][1] + 1e-9


def test_counters_and_an_unknown_phase() -> None:
    board = LedgerBoard(1)
    seat = board.seat("worker 0", ROLE)
    ledger = seat.open()
    ledger.add(0, 5)
    ledger.add(0, 2)
    ledger.add(1, 0.5)
    assert board.account(seat).counters == {"items": 7, "errors": 0.5}
    with pytest.raises(IndexError):
        ledger.enter(4)
    assert board.account(seat).current_phase == START


def test_a_reader_sees_consistent_accounts_while_they_are_written() -> None:
    board = LedgerBoard(1)
    seat = board.seat("worker 0", ROLE)
    ledger = seat.open()
    stop = threading.Event()

    def write() -> None:
        phase = 0
        while not stop.is_set():
            phase = (phase + 1) % 3
            ledger.enter(phase)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3000):
            before = time.monotonic()
            account = board.account(seat)
            after = time.monotonic()
            # A torn read would count the time of the current phase twice, or not at all.
            assert before - account.alive_since - 1e-6 <= account.wall_seconds <= after - account.alive_since + 1e-6
    finally:
        stop.set()
        thread.join()


def test_processes_write_their_own_accounts_and_the_last_state_stays() -> None:
    with Supervisor() as supervisor:
        extra = supervisor.board.seat("loader", runtime_targets.WORKER)
        handle = supervisor.start("worker 0", runtime_targets.keep_accounts, extra, role=runtime_targets.WORKER)
        assert supervisor.poll(30) == [Message(handle, "ready")]
        alive = supervisor.snapshot()["worker 0"]
        assert (alive.pid, alive.ended, alive.current_phase) == (handle.pid, False, "wait")
        assert alive.counters == {"items": 3}
        assert alive.phases["work"] >= 0.05
        assert alive.phases[START] > 0
        assert alive.cpu_seconds >= 0.05
        assert supervisor.snapshot()["loader"].current_phase == "wait"
        supervisor.stop()
    ended = supervisor.snapshot()["worker 0"]
    again = supervisor.snapshot()["worker 0"]
    assert ended.ended
    assert ended == again
    assert ended.phases["wait"] > alive.phases["wait"]
    assert ended.cpu_seconds >= alive.cpu_seconds


def _account(name: str, role: str, phases: dict[str, float], alive_since: float = 1.0) -> ProcessAccount:
    return ProcessAccount(
        name=name,
        role=role,
        pid=1,
        phases=phases,
        counters={"items": phases["work"] * 10},
        waiting=frozenset({"wait"}),
        alive_since=alive_since,
        current_phase="work",
        current_since=2.0,
        ended=False,
        cpu_seconds=phases["work"],
    )


def test_cpu_time_is_finer_than_the_kernels_ticks() -> None:
    board = LedgerBoard()
    seat = board.seat("me", ROLE, os.getpid())
    for _ in range(3):
        begun = time.process_time()
        before = board.account(seat).cpu_seconds
        used = time.process_time()
        while time.process_time() - used < 0.002:
            pass
        seen = board.account(seat).cpu_seconds - before
        assert 0.002 <= seen <= time.process_time() - begun
    board.close()


def test_differences() -> None:
    before = {"a": _account("a", "x", {"work": 1.0, "wait": 1.0, START: 5.0})}
    now = {
        "a": _account("a", "x", {"work": 4.0, "wait": 2.0, START: 5.0}),
        "b": _account("b", "x", {"work": 1.0, "wait": 3.0, START: 0.0}),
        "c": _account("c", "y", {"work": 0.0, "wait": 0.0, START: 2.0}),
    }
    difference = between(before, now)
    assert difference["a"].phases == {"work": 3.0, "wait": 1.0, START: 0.0}
    assert difference["a"].counters == {"items": 30.0}
    assert difference["a"].cpu_seconds == 3.0
    assert difference["b"] == now["b"]
    restarted = {"a": _account("a", "x", {"work": 0.5, "wait": 0.0, START: 0.1}, alive_since=9.0)}
    assert between(before, restarted) == restarted


def test_a_private_ledger_accounts_for_this_process() -> None:
    ledger = Ledger.private(ROLE)
    ledger.enter(2)
    ledger.write_cpu_time()
    assert ledger.role is ROLE


def test_a_full_board_says_so_and_a_closed_one_is_empty() -> None:
    board = LedgerBoard(1)
    board.seat("worker 0", ROLE, os.getpid())
    with pytest.raises(ValueError, match="room for 1 accounts"):
        board.seat("worker 1", ROLE)
    assert board.snapshot()["worker 0"].cpu_seconds > 0
    board.close()
    assert board.snapshot() == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": tuple(f"p{i}" for i in range(24))}, "24 phases and 0 counters; allowed are 23 and 32"),
        ({"counters": tuple(f"c{i}" for i in range(33))}, "0 phases and 33 counters"),
        ({"phases": ("a", "a")}, "must be distinct"),
        ({"phases": (START,)}, "none 'start'"),
        ({"counters": ("a", "a")}, "counters"),
        ({"phases": ("a",), "waiting": frozenset({"b"})}, r"waits in \['b'\]"),
    ],
)
def test_impossible_roles_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Role(name="worker", **arguments)  # type: ignore[arg-type]


def test_a_row_is_what_the_docstring_says() -> None:
    row = np.zeros(ROW)
    row[[0, 1]] = len(ROLE.phases), time.monotonic()
    ledger = Ledger(row, ROLE)
    ledger.enter(1)
    ledger.add(1, 4)
    assert row[0] == 1
    assert row[8 + 3] > 0
    assert row[32 + 1] == 4

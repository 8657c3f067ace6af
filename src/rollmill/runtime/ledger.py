"""The ledger accounts for each process's time, in shared memory.

A process is in exactly one named phase at any moment ("step", "wait for actions", ...). Changing the phase costs about
a tenth of a microsecond, and anybody may read all accounts at any time: the live display, the final report, the tuner
and the check for hung processes read the same numbers. The time of the phase that is still going on is included.

One row of 64 float64 for each process, written by that process alone::

    0 current phase   1 alive since   2 pid   3 ended at   4 CPU seconds   8..31 seconds in each phase   32..63 counters

The seconds of a phase are written when it ends. Since all time is accounted for, the current phase began at
``alive since + sum(seconds)``: it needs no number of its own, so changing the phase is two writes, and whatever instant
a reader hits, no time is counted twice or lost.

Times are ``time.monotonic()`` seconds, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime.arena import Arena, ArenaLayout

START = "start"
"""The phase that every process is in until it enters one of its own."""

_CURRENT, _ALIVE_SINCE, _PID, _ENDED, _CPU = range(5)
_PHASES, _COUNTERS, ROW = 8, 32, 64
_MAX_PHASES, _MAX_COUNTERS = _COUNTERS - _PHASES - 1, ROW - _COUNTERS
_ARRAY = "ledger"
_CPUCLOCK_SCHED = 2  # linux/posix-timers.h


@dataclass(frozen=True, kw_only=True)
class Role:
    """The phases and counters of one kind of process; positions in them are the indices to write with.

    Attributes:
        name: For example ``"rollout worker"``.
        phases: Names of the phases, at most 23.
        counters: Names of the counters, at most 32.
        waiting: Those phases in which the process waits for another one.
        is_stage: Whether others may have to wait for it.
    """

    name: str
    phases: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    waiting: frozenset[str] = frozenset()
    is_stage: bool = True

    def __post_init__(self) -> None:
        if len(self.phases) > _MAX_PHASES or len(self.counters) > _MAX_COUNTERS:
            raise ValueError(
                f"Role {self.name!r} has {len(self.phases)} phases and {len(self.counters)} counters; "
                f"allowed are {_MAX_PHASES} and {_MAX_COUNTERS}."
            )
        if START in self.phases or len(set(self.phases)) != len(self.phases):
            raise ValueError(f"Role {self.name!r} has phases {self.phases}; they must be distinct and none {START!r}.")
        if len(set(self.counters)) != len(self.counters):
            raise ValueError(f"Role {self.name!r} has counters {self.counters}; they must be distinct.")
        if unknown := self.waiting - set(self.phases):
            raise ValueError(f"Role {self.name!r} waits in {sorted(unknown)}, which are not among its phases.")


class Ledger:
    """The account of this process (or of one thread of it): one writer.

    Attributes:
        enter: ``enter(phase)`` ends the current phase and begins the one with this index. Entering the current phase
            again is a sign of life: it restarts ``current_since``.
        add: ``add(counter, n)`` adds to the counter with this index (a float64: whole numbers are exact to 2**53).
    """

    __slots__ = ("_cpu", "add", "enter", "role")

    enter: Callable[[int], None]
    add: Callable[[int, float], None]

    def __init__(self, row: NDArray[np.float64], role: Role) -> None:
        """Writes into ``row`` [64] float64, whose account has been opened."""
        view = row.view(np.uint8).data.cast("d")  # half the time of indexing an ndarray
        clock, current_index, phases_index, counters_index = time.monotonic, _CURRENT, _PHASES, _COUNTERS
        current = int(view[_CURRENT])
        seconds = [view[_PHASES + i] for i in range(len(role.phases) + 1)]
        since = view[_ALIVE_SINCE] + sum(seconds)
        counts: list[float] = [view[_COUNTERS + i] for i in range(len(role.counters))]

        # Closures instead of methods: no attribute look-ups, and these are called several times a step.
        def enter(phase: int) -> None:
            nonlocal current, since
            seconds[phase]  # an unknown phase is an IndexError here, before anything has changed
            now = clock()
            seconds[current] = total = seconds[current] + (now - since)
            view[phases_index + current] = total
            view[current_index] = phase
            current = phase
            since = now

        def add(counter: int, n: float = 1) -> None:
            counts[counter] = total = counts[counter] + n
            view[counters_index + counter] = total

        self.role = role
        self.enter = enter
        self.add = add
        self._cpu = view

    @classmethod
    def private(cls, role: Role) -> Ledger:
        """A ledger without a board, for tests and for running a part alone."""
        row = np.zeros(ROW)
        _open_row(row, role, os.getpid())
        return cls(row, role)

    def write_cpu_time(self) -> None:
        """Writes this process's CPU time (all threads) into its account; called last."""
        self._cpu[_CPU] = time.process_time()


class LedgerSeat(NamedTuple):
    """One row of the board, to be sent to the process (or thread) that will write it."""

    arena: Arena
    row: int
    role: Role

    def open(self) -> Ledger:
        """The writer's end; only one may be open."""
        return Ledger(self.arena[_ARRAY][self.row], self.role)


@dataclass(frozen=True, kw_only=True)
class ProcessAccount:
    """One process's account at one moment.

    Attributes:
        name: The process's name.
        role: Its role's name.
        pid: Its process id.
        phases: Phase -> seconds, the current phase's time included; with ``"start"``.
        counters: Counter -> count.
        waiting: Which of the phases are waiting for another process.
        is_stage: Whether others may have to wait for it.
        alive_since: When it was started (``time.monotonic()`` seconds).
        current_phase: The phase that it is in, or was in when it ended.
        current_since: Since when.
        ended: Whether the process has ended.
        cpu_seconds: CPU time of all its threads.
    """

    name: str
    role: str
    pid: int
    phases: Mapping[str, float]
    counters: Mapping[str, float]
    waiting: frozenset[str] = field(default_factory=frozenset)
    is_stage: bool = True
    alive_since: float
    current_phase: str
    current_since: float
    ended: bool
    cpu_seconds: float

    @property
    def wall_seconds(self) -> float:
        """Total time of all phases."""
        return sum(self.phases.values())


class LedgerBoard:
    """All accounts of a run: assigns rows and reads them."""

    def __init__(self, capacity: int = 1024) -> None:
        """Makes room for ``capacity`` accounts over the whole run (512 bytes each, taken when used)."""
        self._arena = Arena.create(ArenaLayout().add(_ARRAY, (capacity, ROW), np.float64, poisoned=False))
        self._rows: NDArray[np.float64] = self._arena[_ARRAY]
        self._names: list[tuple[str, Role]] = []

    def seat(self, name: str, role: Role, pid: int = 0) -> LedgerSeat:
        """Assigns a row; its time starts now, in phase ``"start"``.

        Raises:
            ValueError: The board is full.
        """
        number = len(self._names)
        if number >= len(self._rows):
            raise ValueError(f"The ledger has room for {number} accounts in a run and all are taken; raise capacity.")
        _open_row(self._rows[number], role, pid)
        self._names.append((name, role))
        return LedgerSeat(self._arena, number, role)

    def set_pid(self, seat: LedgerSeat, pid: int) -> None:
        """Sets the process id of an account, for CPU times."""
        self._rows[seat.row, _PID] = pid

    def end(self, seat: LedgerSeat) -> None:
        """Closes the account of a process that has ended: its last phase stops growing."""
        self._rows[seat.row, _ENDED] = time.monotonic()

    def account(self, seat: LedgerSeat) -> ProcessAccount:
        """One account, now."""
        return self._read(seat.row)

    def snapshot(self) -> dict[str, ProcessAccount]:
        """All accounts by process name, now; of processes with the same name (restarts) the latest."""
        return {self._names[number][0]: self._read(number) for number in range(len(self._names))}

    def close(self) -> None:
        """Releases the memory; accounts that were read before stay valid."""
        self._rows = np.zeros((0, ROW))
        self._names = []
        self._arena.close()

    def _read(self, number: int) -> ProcessAccount:
        name, role = self._names[number]
        row = self._rows[number]
        copy = row.copy()
        ended = float(copy[_ENDED])
        current = int(copy[_CURRENT])
        names = (*role.phases, START)
        phases = {phase: float(copy[_PHASES + i]) for i, phase in enumerate(names)}
        since = float(copy[_ALIVE_SINCE]) + sum(phases.values())
        phases[names[current]] += max(0.0, (ended or time.monotonic()) - since)
        pid = int(copy[_PID])
        if not ended and pid:
            cpu = _cpu_seconds(pid)
            row[_CPU] = max(cpu, row[_CPU])
            copy[_CPU] = row[_CPU]
        return ProcessAccount(
            name=name,
            role=role.name,
            pid=pid,
            phases=phases,
            counters={counter: float(copy[_COUNTERS + i]) for i, counter in enumerate(role.counters)},
            waiting=role.waiting,
            is_stage=role.is_stage,
            alive_since=float(copy[_ALIVE_SINCE]),
            current_phase=names[current],
            current_since=since,
            ended=bool(ended),
            cpu_seconds=float(copy[_CPU]),
        )


def between(before: Mapping[str, ProcessAccount], after: Mapping[str, ProcessAccount]) -> dict[str, ProcessAccount]:
    """The difference of two snapshots: accounts with the differences of phases, counters and CPU seconds.

    Processes that are new in ``after``, or were restarted under the same name, are included as they are.
    """
    result: dict[str, ProcessAccount] = {}
    for name, now in after.items():
        then = before.get(name)
        if then is None or then.alive_since != now.alive_since:
            result[name] = now
            continue
        result[name] = replace(
            now,
            phases={phase: max(0.0, seconds - then.phases[phase]) for phase, seconds in now.phases.items()},
            counters={counter: count - then.counters[counter] for counter, count in now.counters.items()},
            cpu_seconds=now.cpu_seconds - then.cpu_seconds,
        )
    return result


def _open_row(row: NDArray[np.float64], role: Role, pid: int) -> None:
    now = time.monotonic()
    row[:] = 0
    row[[_CURRENT, _ALIVE_SINCE, _PID]] = len(role.phases), now, pid


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process; 0 if it does not exist."""
    try:
        # The process's CPU clock, numbered as by clock_getcpuclockid(3); /proc counts in ticks of 10 ms.
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

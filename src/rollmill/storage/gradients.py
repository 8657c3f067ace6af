"""How gradients of several learners reach the parameter server: a place in shared memory for each, and integers.

The server owns the parameters. Each learner draws batches of its own, differentiates at the newest weights that it
finds, leaves the gradient in its place and says so; the server applies what has come, one gradient after the other,
each an SGD step, and gives the place back::

    learner   announce -- read weights -- announce -- differentiate -- submit -->   server
    learner   <---------------------------------------------- give_back ---------   server

How stale a gradient may be, in SGD steps between the weights that it was computed at and those that it is applied to,
is bounded by what the server does not do: it does not take a step after which another learner's gradient, computed or
being computed, would have its turn too late (:meth:`GradientExchange.next_turn`). So nobody's work is thrown away, and
a slow learner slows the others down instead of spoiling what they learn.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.native import LaneRing, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout

__all__ = ["FIGURES", "MOST_STATISTICS", "GradientExchange", "Submitted", "add_to_layout"]

FIGURES = ("batches", "sum of their ages", "late priorities")
MOST_STATISTICS = 32
_NAMES_BYTES = 4096
_IDLE = -1
_GO = 1


class Submitted(NamedTuple):
    """A gradient that waits in its place.

    Attributes:
        learner: Whose.
        objectives: Bit i: objective i has a gradient.
    """

    learner: int
    objectives: int


def add_to_layout(layout: ArenaLayout, *, num_learners: int, size: int) -> None:
    """Reserves a place of ``size`` float32 for each learner, and the rings."""
    layout.add("gradients/values", (num_learners, size), "float32", page_aligned=True)
    layout.add("gradients/statistics", (num_learners, MOST_STATISTICS), "float32")
    layout.add("gradients/figures", (num_learners, len(FIGURES)), "float64", poisoned=False)
    layout.add("gradients/names", (num_learners, _NAMES_BYTES), "uint8", poisoned=False)
    layout.add("gradients/started", (num_learners,), "int64")
    layout.add("gradients/version", (num_learners,), "int64")
    layout.add("ring/gradients", (LaneRing.nbytes(num_learners, 2),), "uint8")
    for index in range(num_learners):
        layout.add(f"ring/turns/{index}", (LaneRing.nbytes(1, 2),), "uint8")


class GradientExchange:
    """The places, seen from the server or from a learner.

    Args:
        arrays: Shared memory that was laid out with :func:`add_to_layout`.
        num_learners: As there.
        create: True in exactly one process, before the others start: every place is free then.

    Attributes:
        values: float32 ``[num_learners, size]``.
        statistics: float32 ``[num_learners, MOST_STATISTICS]``.
        figures: float64 ``[num_learners, len(FIGURES)]``: each learner's totals since the start.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], num_learners: int, *, create: bool = False) -> None:
        self.num_learners = num_learners
        self.values: NDArray[np.float32] = arrays["gradients/values"]
        self.statistics: NDArray[np.float32] = arrays["gradients/statistics"]
        self.figures: NDArray[np.float64] = arrays["gradients/figures"]
        self._names = arrays["gradients/names"]
        self._started = arrays["gradients/started"]
        self._version = arrays["gradients/version"]
        self._ready = LaneRing(arrays["ring/gradients"], num_learners, 2, create=create)
        self._turns = [LaneRing(arrays[f"ring/turns/{i}"], 1, 2, create=create) for i in range(num_learners)]
        self._messages = np.empty(2 * num_learners, np.int64)
        if create:
            self._started[:] = _IDLE
            self.statistics[:] = 0.0
            self.figures[:] = 0.0
            for learner in range(num_learners):
                self.give_back(learner)

    # --- A learner.

    def wait_for_turn(self, learner: int, timeout_s: float) -> bool:
        """Waits until the learner's place is free; False when that takes longer."""
        return bool(self._turns[learner].get_many(self._messages, timeout_s))

    def announce(self, learner: int, version: int) -> None:
        """What the learner's gradient is computed at: weights of this version, or of a newer one.

        Said before it reads them, because the server must not go on as if nobody had; and again behind that: with a
        version that it has not read it would stand before learners which have older weights.
        """
        atomic_store(self._started, learner, version)

    def submit(self, learner: int, version: int, objectives: int) -> None:
        """The learner's gradient, at the weights of ``version``, is in its place."""
        atomic_store(self._version, learner, version)
        delivered = self._ready.put(learner, objectives << 32 | learner)
        assert delivered, "a learner has one gradient at a time"

    def name_statistics(self, learner: int, names: list[str]) -> None:
        """What the learner's statistics are called, before it submits."""
        encoded = "\n".join(names).encode()
        if len(names) > MOST_STATISTICS or len(encoded) >= _NAMES_BYTES:
            raise ValueError(
                f"the losses have {len(names)} statistics, {', '.join(names)}: parallel learners pass on "
                f"{MOST_STATISTICS} at most, with {_NAMES_BYTES} bytes of names; leave some out"
            )
        self._names[learner, : len(encoded)] = np.frombuffer(encoded, np.uint8)
        self._names[learner, len(encoded) :] = 0

    # --- The server.

    def collect(self, timeout_s: float) -> list[Submitted]:
        """The gradients that have come, in order; waits for one if there is none."""
        count = self._ready.get_many(self._messages, timeout_s)
        return [Submitted(m & 0xFFFFFFFF, m >> 32) for m in self._messages[:count].tolist()]

    def next_turn(self, waiting: Container[int], *, version: int, max_staleness: int) -> int | None:
        """Whose gradient is applied next: of those that have come, the one that was begun first.

        A gradient has its turn behind those that were begun before it: in place k it gets k SGD steps older, at least.
        So ``version + k - begun <= max_staleness`` has to hold for each of them, and the server's steps keep it; a new
        one, of L learners', is in place L - 1 at most.

        Args:
            waiting: The learners whose gradients have come.
            version: Of the newest weights.
            max_staleness: At which a gradient may still be applied, at least ``num_learners`` - 1.

        Returns:
            The learner; None if there is none, or if an older gradient, which is still computed, would have its turn
            too late.
        """
        started = [(atomic_load(self._started, i), i) for i in range(self.num_learners)]
        for place, (begun, learner) in enumerate(sorted(pair for pair in started if pair[0] != _IDLE)):
            if learner in waiting:
                return learner
            if version + 1 + place - begun > max_staleness:
                return None
        return None

    def version_of(self, learner: int) -> int:
        """What version a submitted gradient was computed at."""
        return atomic_load(self._version, learner)

    def give_back(self, learner: int) -> None:
        """The gradient was applied: the learner's place is free."""
        atomic_store(self._started, learner, _IDLE)
        delivered = self._turns[learner].put(0, _GO)
        assert delivered, "a learner has one turn at a time"

    def statistic_names(self, learner: int) -> list[str]:
        """What the statistics of the learner whose gradient has come are called."""
        text = self._names[learner].tobytes().rstrip(b"\0").decode()
        return text.split("\n") if text else []

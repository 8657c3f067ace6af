"""The exchange of gradients between several learners and their parameter server, through shared memory.

The server owns the parameters. Each learner draws its own batches, differentiates at the newest weights, writes the
gradient into its place in shared memory and submits it. The server applies submitted gradients one by one, each as an
SGD step, and returns the places::

    learner   announce -- read weights -- announce -- differentiate -- submit -->   server
    learner   <---------------------------------------------- give_back ---------   server

The staleness of a gradient is the number of SGD steps between the weights that it was computed at and those that it is
applied to. To bound it, the server does not take a step after which the gradient of another learner, computed or being
computed, would be applied too late (:meth:`GradientExchange.next_turn`). So no gradient is dropped, and a slow learner
slows the others down instead of degrading what they learn.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.native import LaneRing, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout

FIGURES = ("batches", "sum of their ages", "late priorities")
MOST_STATISTICS = 32
_NAMES_BYTES = 4096
_IDLE = -1
_GO = 1


class Submitted(NamedTuple):
    """A submitted gradient that was not applied yet.

    Attributes:
        learner: The learner that computed it.
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
    """The exchange, as the server or a learner sees it.

    Args:
        arrays: Shared memory that was laid out with :func:`add_to_layout`.
        num_learners: As in the layout.
        create: True in exactly one process, before the others start: frees every place.

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
        """Announces that the learner computes a gradient at weights of this version or of a newer one.

        Called before it reads the weights, because the server has to respect a gradient that is being computed, and
        again after that with the version that it has read, because older versions have their turns first.
        """
        atomic_store(self._started, learner, version)

    def submit(self, learner: int, version: int, objectives: int) -> None:
        """Submits the gradient in the learner's place, which was computed at the weights of ``version``."""
        atomic_store(self._version, learner, version)
        delivered = self._ready.put(learner, objectives << 32 | learner)
        assert delivered, "a learner has one gradient at a time"

    def name_statistics(self, learner: int, names: list[str]) -> None:
        """Names the learner's statistics; call it before the first submission."""
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
        """The submitted gradients, in order; waits for one if there is none."""
        count = self._ready.get_many(self._messages, timeout_s)
        return [Submitted(m & 0xFFFFFFFF, m >> 32) for m in self._messages[:count].tolist()]

    def next_turn(self, waiting: Container[int], *, version: int, max_staleness: int) -> int | None:
        """The learner whose gradient is applied next: of those submitted, the one that was begun first.

        A gradient is applied after those that were begun before it: at position k its staleness grows by at least k.
        So ``version + k - begun <= max_staleness`` has to hold for each of them, and each step of the server preserves
        this; a new gradient, with L learners, is at position L - 1 at most.

        Args:
            waiting: The learners that have submitted a gradient.
            version: Of the newest weights.
            max_staleness: At which a gradient may still be applied, at least ``num_learners`` - 1.

        Returns:
            The learner; None if no gradient was submitted, or if an older one, still being computed, would be applied
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
        """The version at which a submitted gradient was computed."""
        return atomic_load(self._version, learner)

    def give_back(self, learner: int) -> None:
        """Returns the place of an applied gradient to its learner."""
        atomic_store(self._started, learner, _IDLE)
        delivered = self._turns[learner].put(0, _GO)
        assert delivered, "a learner has one turn at a time"

    def statistic_names(self, learner: int) -> list[str]:
        """Names of the statistics of a learner that has submitted a gradient."""
        text = self._names[learner].tobytes().rstrip(b"\0").decode()
        return text.split("\n") if text else []

"""Keeps a fixed ratio of agent steps to SGD steps over the whole run.

With ``u`` the update interval, ``m`` the minimum size and ``e`` the error buffer, all in agent steps, ``i`` agent steps
inserted and ``s`` batches drawn:

    a batch may be drawn    while i >= m  and  (s + 1) u <= i - m + e
    a step may be made      while i < m  or  i + rows <= m + s u + e

This is Reverb's rate limiter in PAL's units (Cassirer et al. 2021, arXiv:2102.04736, section 3.4). Steps under way are
counted as made, so that many rollout workers cannot be further ahead than one. No deadlock is possible: at any i one of
the two is allowed if ``2 e >= u + rows``, which is checked (:func:`least_error_buffer`).

Each of several policies has counters of its own, by which its learner and the groups that it plays in wait. A policy
that must not step may draw, whatever the others do, so that they cannot wait for each other in a circle. They share the
total of steps: where the run ends for one of them, it ends for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from rollmill.native import atomic_add, atomic_compare_exchange, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout

_RESERVED, _INSERTED, _DRAWN, _SKIPPED, _LEARNERS_WAITING, _FIRST, _DRAWN_BEFORE, _FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
_WORDS_OF_LINE = 8
_UNKNOWN = -1


def least_error_buffer(*, update_interval: float, group_rows: int) -> float:
    """The smallest error buffer with which no deadlock is possible."""
    return (update_interval + group_rows) / 2


@dataclass(frozen=True)
class RateLimits:
    """The limits of a run; all in agent steps.

    Attributes:
        update_interval: Agent steps for each batch.
        min_size: Agent steps before the first batch.
        error_buffer: How far one side may be ahead of the other.
        total_steps: Where inserting ends, of all policies together; the batches that are due are still drawn.
        base: Steps that were inserted before counting started: by an earlier session whose replay is lost, or which had
            other limits.
    """

    update_interval: float
    min_size: int
    error_buffer: float
    total_steps: int
    base: int = 0

    def drawable(self, inserted: int) -> int:
        """How many batches may have been drawn after ``inserted`` steps."""
        since_base = inserted - self.base
        if since_base < self.min_size:
            return 0
        return max(0, int((since_base - self.min_size + self.error_buffer) / self.update_interval + 1e-9))

    def batches_due(self, inserted: int) -> int:
        """How many batches belong to ``inserted`` steps, without the error buffer."""
        return max(0, int((inserted - self.base - self.min_size) / self.update_interval + 1e-9))

    def may_insert(self, inserted: int, rows: int, drawn: int, *, by_others: int = 0) -> bool:
        """Whether ``rows`` more steps may be made after ``inserted`` steps and ``drawn`` batches.

        If a run has fewer steps left than a group has rows, the group still makes a whole step.

        Args:
            inserted: Steps of this policy.
            rows: Steps that it is to make.
            drawn: Its batches.
            by_others: Steps of the other policies.
        """
        left = self.total_steps - by_others - inserted
        if left <= 0:
            return False
        reach = self.base + self.min_size + drawn * self.update_interval + self.error_buffer
        return inserted < self.base + self.min_size or inserted + min(rows, left) <= reach


def add_to_layout(layout: ArenaLayout, policies: int = 1) -> None:
    """Reserves each policy's counters, each on its own cache line, and the limits they were counted with."""
    for policy in range(policies):
        layout.add(_counters(policy), (_FIELDS, _WORDS_OF_LINE), "int64", poisoned=False)
        layout.add(_limits(policy), (4,), "float64", poisoned=False)


def _counters(policy: int) -> str:
    return f"replay/counters/{policy}" if policy else "replay/counters"


def _limits(policy: int) -> str:
    return f"replay/limits/{policy}" if policy else "replay/limits"


def damage_of(arena: Mapping[str, NDArray[Any]], policies: int = 1) -> str:
    """Describes impossible values in the counters of an earlier session; empty if there are none."""
    return next(filter(None, (_damage_of(arena, policy) for policy in range(policies))), "")


def _damage_of(arena: Mapping[str, NDArray[Any]], policy: int) -> str:
    interval, asked_size, base, min_size = limits = arena[_limits(policy)].tolist()
    if not (all(map(math.isfinite, limits)) and interval > 0 and min(asked_size, base, min_size) >= 0):
        return f"it was counted by an update interval of {interval} and a minimum size of {asked_size}"
    counters = arena[_counters(policy)][:, 0].tolist()
    # Batches drawn since `base` are negative while batches from before it are still due. The first step is negative
    # while preloaded steps, which are not counted as inserted, are in the replay.
    never_negative = [count for field, count in enumerate(counters[:_DRAWN_BEFORE]) if field not in (_DRAWN, _FIRST)]
    if min(never_negative) < 0 or counters[_FIRST] > counters[_INSERTED] or counters[_DRAWN_BEFORE] < _UNKNOWN:
        return f"its counters are {counters}"
    return ""


def inserted_of(arena: Mapping[str, NDArray[Any]], policy: int = 0) -> int:
    """Agent steps of a policy that earlier sessions have inserted into the replay."""
    return int(arena[_counters(policy)][_INSERTED, 0])


def resumed_limits(
    arena: Mapping[str, NDArray[Any]], wanted: RateLimits, *, policy: int = 0, policies: int = 1
) -> RateLimits:
    """The limits of a resumed replay; call it before the processes start.

    If the update interval and the minimum size are unchanged, all counts continue. Otherwise counting restarts here,
    and batches that were due by the old limits and were not learned from stay due.

    Args:
        arena: The shared memory of the replay.
        wanted: The limits that the configuration asks for, with base 0.
        policy: Whose limits they are.
        policies: Number of policies.
    """
    interval, asked_size, base, min_size = arena[_limits(policy)].tolist()
    old = replace(wanted, update_interval=interval, min_size=int(min_size), base=int(base))
    if (wanted.update_interval, wanted.min_size) == (interval, asked_size):
        return old
    limiter = RateLimiter(arena, old, policy=policy, policies=policies)
    inserted = limiter.inserted
    # Preloaded steps still count, and a replay that was recreated near the end of a run keeps its smaller size.
    preloaded = 0 if old.base else int(asked_size) - old.min_size
    least = min(wanted.min_size, old.min_size) if old.base else max(0, wanted.min_size - preloaded)
    limits = replace(wanted, base=old.base, min_size=least)
    if inserted - old.base >= min(old.min_size, limits.min_size):
        limits = replace(wanted, base=inserted, min_size=0)
        limiter.advance_base(old.batches_due(inserted))
    limiter.remember(wanted, limits)
    return limits


class RateLimiter:
    """The counters of a policy that all processes share; any process may call anything.

    Args:
        arena: Shared memory that was laid out with :func:`add_to_layout`.
        limits: The same in every process.
        policy: Whose counters they are.
        policies: Number of policies, which share the total of steps.
    """

    def __init__(
        self, arena: Mapping[str, NDArray[Any]], limits: RateLimits, *, policy: int = 0, policies: int = 1
    ) -> None:
        self._kept_limits = arena[_limits(policy)]
        self._words = arena[_counters(policy)].reshape(-1)
        self._of_others = [arena[_counters(other)].reshape(-1) for other in range(policies) if other != policy]
        self.limits = limits

    def set(self, *, inserted: int, drawn: int) -> None:
        """Sets the counts of a session (``drawn``: batches since ``base``); call it before the processes start."""
        self._put(_RESERVED, inserted)
        self._put(_INSERTED, inserted)
        self._put(_DRAWN, drawn)
        self._put(_LEARNERS_WAITING, 0)

    def begin(self) -> None:
        """Initialises an empty replay that starts at ``base``."""
        self.set(inserted=self.limits.base, drawn=0)
        self._put(_SKIPPED, 0)
        self._put(_FIRST, self.limits.base)
        self._put(_DRAWN_BEFORE, _UNKNOWN)
        self.remember(self.limits, self.limits)

    def remember(self, wanted: RateLimits, limits: RateLimits) -> None:
        """Stores the limits in use, and those that were asked for, for :func:`resumed_limits`."""
        kept = wanted.update_interval, wanted.min_size, limits.base, limits.min_size
        self._kept_limits[:] = kept

    def advance_base(self, batches: int) -> None:
        """Moves ``base`` past ``batches`` batches that are due before it."""
        before = self._get(_DRAWN_BEFORE)
        if before != _UNKNOWN:
            self._put(_DRAWN_BEFORE, before + batches)

    def learn_from(self, sgd_steps: int) -> int:
        """Resumes a learner after ``sgd_steps`` SGD steps; those since ``base`` count as batches drawn.

        A replay that has outlived the run may hold more steps than the learner's checkpoint has learned from; the
        learner then catches up.

        Returns:
            The SGD steps before ``base``.
        """
        before = self._get(_DRAWN_BEFORE)
        if before == _UNKNOWN:
            before = sgd_steps
            self._put(_DRAWN_BEFORE, before)
        # Batches that were skipped are not due again.
        self._put(_DRAWN, sgd_steps - before + self.skipped)
        return before

    @property
    def held(self) -> int:
        """Agent steps that the replay holds: those inserted minus those evicted."""
        return self.inserted - self._get(_FIRST)

    def hold(self, steps: int) -> None:
        """Sets the agent steps that the replay holds; call it before the processes start."""
        self._put(_FIRST, self.inserted - steps)

    def forget(self, steps: int) -> None:
        """Counts agent steps that have left the replay, where that is known."""
        atomic_add(self._words, _FIRST * _WORDS_OF_LINE, steps)

    @property
    def inserted(self) -> int:
        """Agent steps inserted."""
        return self._get(_INSERTED)

    @property
    def drawn(self) -> int:
        """Batches drawn since ``base``."""
        return self._get(_DRAWN)

    @property
    def behind(self) -> int:
        """Agent steps by which the learner is behind: 0, except while it catches up with a replay that outlived it."""
        limits = self.limits
        # Otherwise no more than one error buffer ahead, or in the first step two (see least_error_buffer).
        most = limits.base + limits.min_size + self.drawn * limits.update_interval + 2 * limits.error_buffer
        return max(0, math.ceil(min(self.inserted, limits.total_steps) - most))

    def try_reserve(self, rows: int, *, with_others: int = 0) -> bool:
        """Whether ``rows`` steps may be made now; if so, they are counted as under way.

        Args:
            rows: Steps of this policy.
            with_others: Those that other policies have reserved for the same step of a group, which is made as a whole.
        """
        place = _RESERVED * _WORDS_OF_LINE
        while True:
            reserved = atomic_load(self._words, place)
            by_others = self._by_others(_RESERVED) - with_others
            if not self.limits.may_insert(reserved, rows, self.drawn, by_others=by_others):
                return False
            if atomic_compare_exchange(self._words, place, reserved, reserved + rows):
                return True

    def insert(self, rows: int, *, reserved: int) -> None:
        """Counts ``rows`` of the ``reserved`` steps as inserted; the others were no transitions."""
        if rows != reserved:
            atomic_add(self._words, _RESERVED * _WORDS_OF_LINE, rows - reserved)
        atomic_add(self._words, _INSERTED * _WORDS_OF_LINE, rows)

    def release(self, rows: int) -> None:
        """Uncounts reserved steps that are not made."""
        atomic_add(self._words, _RESERVED * _WORDS_OF_LINE, -rows)

    @property
    def inserted_by_all(self) -> int:
        """Agent steps that all policies have inserted."""
        return self.inserted + self._by_others(_INSERTED)

    @property
    def is_full(self) -> bool:
        """Whether all steps of the run have been inserted."""
        return self.inserted_by_all >= self.limits.total_steps

    @property
    def may_draw(self) -> bool:
        """Whether a batch may be drawn now."""
        return self.drawn < self._drawable()

    def try_draw(self) -> bool:
        """As :attr:`may_draw`; if so, the batch is counted."""
        place = _DRAWN * _WORDS_OF_LINE
        while True:
            drawn = atomic_load(self._words, place)
            if drawn >= self._drawable():
                return False
            if atomic_compare_exchange(self._words, place, drawn, drawn + 1):
                return True

    def take_back(self) -> None:
        """Uncounts a batch that was not drawn."""
        atomic_add(self._words, _DRAWN * _WORDS_OF_LINE, -1)

    @property
    def skipped(self) -> int:
        """Batches that count as drawn although there was nothing to draw."""
        return self._get(_SKIPPED)

    def skip_batches(self) -> None:
        """Counts all batches that are due as drawn: no step can be drawn, and none that could be is to come."""
        while self.try_draw():
            atomic_add(self._words, _SKIPPED * _WORDS_OF_LINE, 1)

    def is_deadlocked(self, rows: int) -> bool:
        """Whether steps are missing, none is under way, and no group of ``rows`` rows may make one."""
        inserted = self.inserted
        is_under_way = self._get(_RESERVED) != inserted
        return not (
            self.is_full
            or is_under_way
            or self.limits.may_insert(inserted, rows, self.drawn, by_others=self._by_others(_INSERTED))
        )

    def _drawable(self) -> int:
        inserted = self.inserted
        # Without the error buffer at the end, so that the last steps are learned from as often as all others.
        of = self.limits.batches_due if self.is_full else self.limits.drawable
        return of(inserted)

    @property
    def is_done(self) -> bool:
        """Whether all steps are inserted and all batches that belong to them drawn."""
        return self.is_full and not self.may_draw

    @property
    def learners_waiting(self) -> int:
        """How many learners wait for steps and have to be woken."""
        return self._get(_LEARNERS_WAITING)

    def wait_as_learner(self, by: int) -> None:
        """Counts a learner that starts (1) or stops (-1) waiting."""
        atomic_add(self._words, _LEARNERS_WAITING * _WORDS_OF_LINE, by)

    def _by_others(self, field: int) -> int:
        if not self._of_others:  # a generator would take longer than all the rest
            return 0
        return sum(atomic_load(words, field * _WORDS_OF_LINE) for words in self._of_others)

    def _get(self, field: int) -> int:
        return atomic_load(self._words, field * _WORDS_OF_LINE)

    def _put(self, field: int, value: int) -> None:
        atomic_store(self._words, field * _WORDS_OF_LINE, value)

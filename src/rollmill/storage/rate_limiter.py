"""Holds collecting and learning together: so many agent steps for each SGD step, over the whole run.

With ``u`` the update interval, ``m`` the minimum size and ``e`` the error buffer, all in agent steps, ``i`` agent steps
inserted and ``s`` batches drawn:

    a batch may be drawn    while i >= m  and  (s + 1) u <= i - m + e
    a step may be made      while i < m  or  i + rows <= m + s u + e

This is Reverb's rate limiter in PAL's units (Cassirer et al. 2021, arXiv:2102.04736, section 3.4). Steps under way are
counted as made, so that many rollout workers cannot be ahead by more than one can. Nobody can be made to wait for ever:
at any i one of the two is allowed if ``2 e >= u + rows``, which is checked (:func:`least_error_buffer`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from rollmill.native import atomic_add, atomic_compare_exchange, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout

__all__ = ["RateLimiter", "RateLimits", "add_to_layout", "damage_of", "going_on", "inserted_of", "least_error_buffer"]

_RESERVED, _INSERTED, _DRAWN, _FORGONE, _LEARNERS_WAITING, _FIRST, _DRAWN_BEFORE, _FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
_WORDS_OF_LINE = 8
_NOBODY_KNOWS = -1


def least_error_buffer(*, update_interval: float, group_rows: int) -> float:
    """The smallest error buffer with which neither side can be made to wait for ever."""
    return (update_interval + group_rows) / 2


@dataclass(frozen=True)
class RateLimits:
    """The three numbers, and where inserting ends; all in agent steps.

    Attributes:
        update_interval: For each batch.
        min_size: Before the first batch.
        error_buffer: Ahead or behind.
        total_steps: After so many no more is inserted; the batches that are due are still drawn.
        base: Steps inserted before everything here counts: by an earlier session, whose replay is gone, or which had
            other limits.
    """

    update_interval: float
    min_size: int
    error_buffer: float
    total_steps: int
    base: int = 0

    def drawable(self, inserted: int) -> int:
        """How many batches may have been drawn after so many steps."""
        since_base = inserted - self.base
        if since_base < self.min_size:
            return 0
        return max(0, int((since_base - self.min_size + self.error_buffer) / self.update_interval + 1e-9))

    def batches_due(self, inserted: int) -> int:
        """How many batches belong to so many steps, with nobody ahead or behind."""
        return max(0, int((inserted - self.base - self.min_size) / self.update_interval + 1e-9))

    def may_insert(self, inserted: int, rows: int, drawn: int) -> bool:
        """Whether ``rows`` more steps may be made after so many steps and batches.

        The last steps of a run may be fewer than a group's rows: then the group makes all of its.
        """
        if inserted >= self.total_steps:
            return False
        reach = self.base + self.min_size + drawn * self.update_interval + self.error_buffer
        return inserted < self.base + self.min_size or min(inserted + rows, self.total_steps) <= reach


def add_to_layout(layout: ArenaLayout) -> None:
    """Reserves the counters, each on a cache line of its own, and what they were counted by."""
    layout.add("replay/counters", (_FIELDS, _WORDS_OF_LINE), "int64", poisoned=False)
    layout.add("replay/limits", (4,), "float64", poisoned=False)


def damage_of(arena: Mapping[str, NDArray[Any]]) -> str:
    """What cannot stand in counters that an earlier session left; empty for nothing."""
    interval, asked_size, base, min_size = limits = arena["replay/limits"].tolist()
    if not (all(map(math.isfinite, limits)) and interval > 0 and min(asked_size, base, min_size) >= 0):
        return f"it was counted by an update interval of {interval} and a minimum size of {asked_size}"
    counters = arena["replay/counters"][:, 0].tolist()
    # Batches drawn since `base` are fewer than none while some of those before it are owed.
    never_negative = [count for field, count in enumerate(counters[:_DRAWN_BEFORE]) if field != _DRAWN]
    if min(never_negative) < 0 or counters[_DRAWN_BEFORE] < _NOBODY_KNOWS:
        return f"its counters are {counters}"
    return ""


def inserted_of(arena: Mapping[str, NDArray[Any]]) -> int:
    """Agent steps that were inserted into a replay which an earlier session left."""
    return int(arena["replay/counters"][_INSERTED, 0])


def going_on(arena: Mapping[str, NDArray[Any]], wanted: RateLimits) -> RateLimits:
    """The limits with which a replay goes on that an earlier session left.

    As long as the update interval and the minimum size are what they were, all counts go on. Others are for what comes:
    counting begins anew from here, and what was due until now by the old ones, and is not learned yet, is owed.

    Args:
        arena: The shared memory of that replay; before the processes start.
        wanted: What the configuration says, with base 0.
    """
    interval, asked_size, base, min_size = arena["replay/limits"].tolist()
    old = replace(wanted, update_interval=interval, min_size=int(min_size), base=int(base))
    if (wanted.update_interval, wanted.min_size) == (interval, asked_size):
        return old
    limiter = RateLimiter(arena, old)
    inserted = limiter.inserted
    limits = replace(wanted, base=old.base)
    if inserted - old.base >= min(old.min_size, wanted.min_size):
        limits = replace(wanted, base=inserted, min_size=0)
        limiter.pass_by(old.batches_due(inserted))
    limiter.remember(wanted, limits)
    return limits


class RateLimiter:
    """The counters that all processes share; any process may call anything.

    Args:
        arena: Shared memory that was laid out with :func:`add_to_layout`.
        limits: The same in every process.
    """

    def __init__(self, arena: Mapping[str, NDArray[Any]], limits: RateLimits) -> None:
        self._arena = arena
        self._words = arena["replay/counters"].reshape(-1)
        self.limits = limits

    def set(self, *, inserted: int, drawn: int) -> None:
        """Goes on from these counts (batches since ``base``); before the processes start."""
        self._put(_RESERVED, inserted)
        self._put(_INSERTED, inserted)
        self._put(_DRAWN, drawn)
        self._put(_FORGONE, 0)
        self._put(_LEARNERS_WAITING, 0)

    def begin(self) -> None:
        """Of a replay that holds nothing: its first step is the one behind ``base``."""
        self.set(inserted=self.limits.base, drawn=0)
        self._put(_FIRST, self.limits.base)
        self._put(_DRAWN_BEFORE, _NOBODY_KNOWS)
        self.remember(self.limits, self.limits)

    def remember(self, wanted: RateLimits, limits: RateLimits) -> None:
        """Keeps for :func:`going_on` what is counted by: what was wanted, and the compromise that the limits may be."""
        kept = wanted.update_interval, wanted.min_size, limits.base, limits.min_size
        self._arena["replay/limits"][:] = kept

    def pass_by(self, batches: int) -> None:
        """``base`` moves on: so many batches are due before it."""
        before = self._get(_DRAWN_BEFORE)
        if before != _NOBODY_KNOWS:
            self._put(_DRAWN_BEFORE, before + batches)

    def learn_from(self, sgd_steps: int) -> int:
        """A learner goes on after so many SGD steps; those since ``base`` are batches drawn.

        A replay that has outlived the run may hold more than the learner's checkpoint has seen: that is caught up with.

        Returns:
            SGD steps that belong to what was before ``base``.
        """
        before = self._get(_DRAWN_BEFORE)
        if before == _NOBODY_KNOWS:
            before = sgd_steps
            self._put(_DRAWN_BEFORE, before)
        self._put(_DRAWN, sgd_steps - before)
        return before

    @property
    def held(self) -> int:
        """Agent steps inserted since the replay was empty."""
        return self.inserted - self._get(_FIRST)

    @property
    def inserted(self) -> int:
        """Agent steps inserted."""
        return self._get(_INSERTED)

    @property
    def drawn(self) -> int:
        """Batches drawn since ``base``."""
        return self._get(_DRAWN)

    def try_reserve(self, rows: int) -> bool:
        """Whether ``rows`` steps may be made now; if so, they are counted as under way."""
        place = _RESERVED * _WORDS_OF_LINE
        while True:
            reserved = atomic_load(self._words, place)
            if not self.limits.may_insert(reserved, rows, self.drawn):
                return False
            if atomic_compare_exchange(self._words, place, reserved, reserved + rows):
                return True

    def insert(self, rows: int, *, reserved: int) -> None:
        """``rows`` of the ``reserved`` steps were made and committed; the others showed no transition."""
        if rows != reserved:
            atomic_add(self._words, _RESERVED * _WORDS_OF_LINE, rows - reserved)
        atomic_add(self._words, _INSERTED * _WORDS_OF_LINE, rows)

    @property
    def is_full(self) -> bool:
        """Whether all steps of the run have been inserted."""
        return self.inserted >= self.limits.total_steps

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
        """A counted batch was not drawn after all."""
        atomic_add(self._words, _DRAWN * _WORDS_OF_LINE, -1)

    @property
    def forgone(self) -> int:
        """Batches that count as drawn, but for which there was nothing to draw."""
        return self._get(_FORGONE)

    def forgo(self) -> None:
        """All steps are inserted, and none of them can be drawn: no batch is due any more."""
        while self.try_draw():
            atomic_add(self._words, _FORGONE * _WORDS_OF_LINE, 1)

    def holds_everybody(self, rows: int) -> bool:
        """Whether no group of ``rows`` rows may make a step, none is under way, and steps are missing: all wait."""
        inserted = self.inserted
        is_under_way = self._get(_RESERVED) != inserted
        return not (self.is_full or is_under_way or self.limits.may_insert(inserted, rows, self.drawn))

    def _drawable(self) -> int:
        inserted = self.inserted
        # At the end nobody is ahead: what was collected is learned from as often as everything before it.
        of = self.limits.batches_due if inserted >= self.limits.total_steps else self.limits.drawable
        return of(inserted)

    @property
    def is_done(self) -> bool:
        """Whether all steps are inserted and all batches that belong to them drawn."""
        return self.is_full and not self.may_draw

    @property
    def learners_waiting(self) -> int:
        """How many learners wait for steps: they want to be woken."""
        return self._get(_LEARNERS_WAITING)

    def wait_as_learner(self, by: int) -> None:
        """A learner begins (1) or ends (-1) to wait."""
        atomic_add(self._words, _LEARNERS_WAITING * _WORDS_OF_LINE, by)

    def _get(self, field: int) -> int:
        return atomic_load(self._words, field * _WORDS_OF_LINE)

    def _put(self, field: int, value: int) -> None:
        atomic_store(self._words, field * _WORDS_OF_LINE, value)

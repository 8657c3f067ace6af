"""Numbers of the learner that may change during a run, set by the main process instead of by their schedules.

Imports no torch: the main process checks by the same rules what a callback sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from rollmill.runtime.arena import ArenaLayout
from rollmill.runtime.control import AT_ONCE, Change, ControlBlock, add_to_layout
from rollmill.settings.value_checks import ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ZERO, UNIT, UNIT_BELOW_ONE, Rule

NUMBERS: Mapping[str, Rule] = {
    "learning_rate": AT_LEAST_ZERO,
    "entropy_coef": AT_LEAST_ZERO,
    "clip_range": ABOVE_ZERO,
    "reward_scale": ABOVE_ZERO,
    "value_coef": AT_LEAST_ZERO,
    "max_grad_norm": ABOVE_ZERO,
    "discount": UNIT,
    "gae_lambda": UNIT,
    "adam_beta1": UNIT_BELOW_ONE,
    "adam_beta2": UNIT_BELOW_ONE,
}
"""Name -> its values; each is called as the setting ``learner.NAME`` that it replaces; Adam's betas are two numbers."""


REWARD_WEIGHT = "reward_weight."
"""Begins the names of the weights of reward terms."""


def rule_of(name: str) -> Rule:
    """Return the values that a number may have."""
    return ANY_NUMBER if name.startswith(REWARD_WEIGHT) else NUMBERS[name]


class Request:
    """What may be asked of the learner, by name."""

    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    ALL = (CHECKPOINT, EVALUATION)


def add_numbers_to_layout(layout: ArenaLayout, *, terms: Sequence[str] = (), policy: int = 0) -> None:
    """Reserve the control block of a policy, for a run with these reward terms."""
    add_to_layout(layout, numbers=_names(terms), requests=Request.ALL, policy=policy)


def control_block(
    arena: Mapping[str, NDArray[Any]], *, terms: Sequence[str] = (), policy: int = 0, create: bool = False
) -> ControlBlock:
    """Attach the control block of a policy; ``create`` initialises it."""
    return ControlBlock(arena, numbers=_names(terms), requests=Request.ALL, policy=policy, create=create)


def _names(terms: Sequence[str]) -> tuple[str, ...]:
    return (*NUMBERS, *(f"{REWARD_WEIGHT}{term}" for term in terms))


News = tuple[list[tuple[str, float, int]], list[int]]
"""What is new for the learner, as plain data: changes of numbers, and how often each request was made."""


class LiveNumbers:
    """The numbers that are set, and the requests that are not yet served, as a learner knows them.

    Every rank has one; all of them take the news that rank 0 reads, before the same batch.

    Args:
        block: Where the news come from; None without a block.
        settings: Name -> what the run's settings say about a number. After a resume with other ones, the setting holds.
        note: Called with what a person must know.
        log: Called with what is worth a line in the log.
    """

    def __init__(
        self,
        block: ControlBlock | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        note: Callable[[str], None] = lambda text: None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._block = block
        self._settings = dict(settings or {})
        self._note = note
        self._log = log
        self._set: dict[str, float] = {}
        self._pending: list[Change] = []
        self._counts = [0] * len(Request.ALL)
        self._asked: set[str] = set()

    def read(self, batch: int) -> News:
        """What is new.

        Args:
            batch: The one that is about to begin, counted from 0.
        """
        if self._block is None:
            return [], self._counts
        changes = [(change.name, change.value, change.from_batch) for change in self._block.take_changes(batch)]
        return changes, self._block.requested()

    def take(self, news: News, batch: int) -> None:
        """Takes over what :meth:`read` gave, on rank 0, for this batch.

        Changes for later batches wait. One that comes too late for its batch holds from this one on, and is reported.
        """
        changes, counts = news
        if counts != self._counts:
            asked = zip(Request.ALL, counts, self._counts, strict=True)
            self._asked |= {name for name, now, before in asked if now > before}
            self._counts = counts
        if not changes and not self._pending:
            return
        for change in (Change(*plain) for plain in changes):
            if AT_ONCE < change.from_batch < batch:
                self._note(
                    f"{change.name}={change.value:g} was set from batch {change.from_batch} on, but {batch} is the "
                    f"next that begins: it holds from batch {batch} on"
                )
            self._pending.append(change)
        due = [change for change in self._pending if change.from_batch <= batch]
        self._pending = [change for change in self._pending if change.from_batch > batch]
        for change in due:
            is_reset = math.isnan(change.value)
            self._log(f"from batch {batch} on {change.name} is {'scheduled' if is_reset else f'{change.value:g}'}")
            if is_reset:
                self._set.pop(change.name, None)
            else:
                self._set[change.name] = change.value
        if due:
            self._publish()

    def value(self, name: str, scheduled: float) -> float:
        """The number to use: what is set, or what the schedule gives."""
        return self._set.get(name, scheduled)

    def set(self, values: Mapping[str, float]) -> None:
        """Set numbers, in the learner's process, from its next batch on."""
        self._set |= values
        self._publish()

    def is_set(self, name: str) -> bool:
        """Whether a number is set, so that its schedule does not count."""
        return name in self._set

    def take_request(self, name: str) -> bool:
        """Whether this was asked for since the last call."""
        if name not in self._asked:
            return False
        self._asked.remove(name)
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: plain numbers and strings."""
        return {
            "set": dict(self._set),
            "pending": [list(change) for change in self._pending],
            "settings": dict(self._settings),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave, without the numbers whose settings are others by now."""
        before = state.get("settings", self._settings)  # missing in checkpoints of earlier versions
        changed = {name for name in before.keys() | self._settings if before.get(name) != self._settings.get(name)}
        pending = [Change(*change) for change in state["pending"]]
        for name in sorted(changed & {*state["set"], *(change.name for change in pending)}):
            self._log(f"{name} is that of the settings, which were changed since it was set during the run")
        self._set = {name: value for name, value in state["set"].items() if name not in changed}
        self._pending = [change for change in pending if change.name not in changed]
        self._publish()

    def _publish(self) -> None:
        if self._block is not None:
            self._block.publish(self._set)

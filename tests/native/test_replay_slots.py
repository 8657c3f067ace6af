"""What ReplaySlots refuses; what it draws is tested in tests/storage, against a literal replay."""

import mmap
from typing import Any

import numpy as np
import pytest

from rollmill.native import DrawRule, ReplaySlots, SlotBatch, SumTree

SLOTS, T, B = 3, 4, 2


def make(**changes: Any) -> ReplaySlots:
    leaves = SLOTS * T * B
    memory = mmap.mmap(-1, SumTree.nbytes(leaves))  # which begins at a page
    SumTree(memory, leaves, create=True)
    steps = {name: np.zeros((SLOTS, T, B), bool) for name in ("terminated", "truncated", "valid")}
    arguments: dict[str, Any] = {
        "rollout_length": T,
        "rows": B,
        "n_step": 1,
        "history": 0,
        "reward": np.zeros((SLOTS, T, B), np.float32),
        "reset": np.zeros((SLOTS, T + 1, B), bool),
        **steps,
        **{name: np.full(SLOTS, -1, np.int64) for name in ("generation", "next", "previous")},
    }
    return ReplaySlots([memory], **{**arguments, **changes})


def test_what_fits_is_taken() -> None:
    make()
    make(n_step=T, history=T, window=T, stride=2)
    make(n_step=T, acts=np.zeros((SLOTS, T + 1, B), bool))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_length": 0}, "rollout_length is 0 and rows 2; both must be at least 1"),
        ({"rows": -1}, "rows -1; both must be at least 1"),
        # Whose product is 0 in 64 bits.
        ({"rollout_length": 2**32, "rows": 2**32}, "the tree has 24 leaves, fewer than one slot"),
        ({"rollout_length": 5, "rows": 1}, "there must be a whole number of slots of rollout_length x rows = 5"),
        ({"n_step": 0}, "n_step is 0 and history 0"),
        ({"history": T + 1}, "history 5; they must be 1 to rollout_length=4"),
        ({"n_step": 3, "window": 2}, "window is 2; it must be n_step=3 to rollout_length=4"),
        ({"stride": 0}, "stride is 0; it must divide rollout_length=4"),
        ({"stride": 3}, "stride is 3; it must divide rollout_length=4"),
        ({"reward": np.zeros((SLOTS, T, B + 1), np.float32)}, r"reward must be of shape \[3, 4, 2\]"),
        ({"reward": np.zeros((SLOTS, T, B), np.float64)}, "reward must be .* of 4 byte"),
        ({"next": np.zeros(SLOTS + 1, np.int64)}, r"next must be of shape \[3\]"),
        ({"acts": np.zeros((SLOTS, T, B), bool)}, r"acts must be of shape \[3, 5, 2\]"),
        ({"acts": np.zeros((SLOTS, T + 1, B), bool), "history": 1}, "history is 1 and window 0 with acts"),
        ({"acts": np.zeros((SLOTS, T + 1, B), bool), "window": 2}, "history is 0 and window 2 with acts"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize("slot", [-1, SLOTS, 2**62])
def test_slots_that_there_are_not_are_refused(slot: int) -> None:
    slots = make()
    with pytest.raises(IndexError, match=f"slot is {slot}; there are slots 0 to 2"):
        slots.begin(slot, -1)
    with pytest.raises(IndexError, match=f"slot is {slot}; there are slots 0 to 2"):
        slots.commit(slot, 0, np.zeros(B, np.int64))
    with pytest.raises(IndexError, match=f"slot is {slot}; there are slots 0 to 2"):
        slots.evict(slot)


def test_a_slot_cannot_follow_itself() -> None:
    with pytest.raises(ValueError, match="slot 1 cannot follow itself"):
        make().begin(1, 1)


def make_batch(slots: ReplaySlots, size: int = 3, **changes: Any) -> SlotBatch:
    arguments: dict[str, Any] = {
        "leaf": np.zeros(size, np.int64),
        "weight": np.zeros(size, np.float32),
        "reward": np.zeros(size, np.float32),
        "discount": np.zeros(size, np.float32),
        "copies": [],
    }
    return SlotBatch(slots, **{**arguments, **changes})


AT_STEPS, AT_CELLS = np.zeros((SLOTS * T * B, 2), np.float32), np.zeros((SLOTS * (T + 1) * B, 2), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leaf": np.zeros(0, np.int64)}, "leaf is empty; a batch has at least 1 sample"),
        ({"weight": np.zeros(4, np.float32)}, r"weight must be of shape \[3\]"),
        ({"reward": np.zeros((2, 3), np.float32)}, r"reward must be of shape \[3\]"),
        ({"copies": [(np.zeros((3, 2), np.float32), AT_CELLS, "steps", None)]}, "must have 24 rows"),
        ({"copies": [(np.zeros((3, 2), np.float32), AT_STEPS, "cells", None)]}, "must have 30 rows"),
        ({"copies": [(np.zeros((2, 2), np.float32), AT_STEPS, "steps", None)]}, "has 16 bytes; it must have 24"),
        ({"copies": [(np.zeros((3, 2, 2), np.float32), AT_CELLS, "cells", None)]}, "has 48 bytes; it must have 24"),
        ({"copies": [(np.zeros((3, 3, 2), np.float32), AT_CELLS, "cells", "zero")]}, r"up to history \+ 1 = 2 times"),
        ({"copies": [(np.zeros((3, 2), np.float32), AT_STEPS, "states", None)]}, "the entries are 'states'; allowed"),
    ],
)
def test_batches_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_batch(make(history=1), **changes)


def test_batches_of_windows_that_do_not_fit_are_refused() -> None:
    slots = make(n_step=2, window=4)
    table = np.zeros((3, 3), np.float32)
    then = np.zeros((3, 3), np.int64)
    make_batch(slots, reward=table, discount=table.copy(), then=then)
    for rewards in (np.zeros(3, np.float32), np.zeros((4, 3), np.float32)):
        with pytest.raises(ValueError, match=r"reward must be \[learned steps, 3\] with 1 to window - n_step \+ 1 = 3"):
            make_batch(slots, reward=rewards, discount=table, then=then)
    with pytest.raises(ValueError, match=r"then must be of shape \[3, 3\]"):
        make_batch(slots, reward=table, discount=table.copy(), then=then[:2])
    copies = [(np.zeros((3, 2), np.float32), AT_CELLS, "next_cells", None)]
    with pytest.raises(ValueError, match="the entries are 'next_cells'; allowed"):
        make_batch(slots, reward=table, discount=table.copy(), then=then, copies=copies)


def test_draws_that_do_not_fit_are_refused() -> None:
    slots = make()
    batch = make_batch(slots)
    rule: dict[str, Any] = {"gamma": 0.9, "reward_scale": 1.0, "reward_clip": np.inf, "stratified": False}
    with pytest.raises(ValueError, match="weights is 'most'; allowed: 'ones', 'batch', 'global', 'none'"):
        DrawRule(weights="most", **rule)  # type: ignore[arg-type]
    random = np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match="weights is 'global'; that needs a tree created with minimum=True"):
        slots.sample(random, batch, DrawRule(weights="global", **rule), 0.4, 1)
    with pytest.raises(TypeError, match="random must be a uint64 array of 2"):
        slots.sample(random[:1], batch, DrawRule(weights="ones", **rule), 0.4, 1)
    with pytest.raises(ValueError, match="td_errors must be a float32 array of 3"):
        slots.update(batch, np.zeros(2, np.float32), alpha=0.6, epsilon=1e-6, decay=1.0)
    assert not slots.sample(random, batch, DrawRule(weights="ones", **rule), 0.4, 1)

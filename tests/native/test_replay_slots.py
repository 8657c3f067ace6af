"""What ReplaySlots refuses; what it draws is tested in tests/storage, against a literal replay."""

import mmap
from typing import Any

import numpy as np
import pytest

from rollmill.native import ReplaySlots, SumTree

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
    return ReplaySlots(memory, **{**arguments, **changes})


def test_what_fits_is_taken() -> None:
    make()
    make(n_step=T, history=T, window=T, stride=2)


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

"""Batches: which arrays they have, that none is replaced, and when a later batch gets them."""

import numpy as np
import pytest
from tests.replay.small_replays import filled

from rollmill.replay import Batch, PrioritizedReplay
from rollmill.replay.batch import new_batch

FIELDS = {"obs": ((2,), "uint8"), "action": ((), "int64"), "reward": ((), "float32")}


def shapes(batch):
    return {name: (array.shape, str(array.dtype)) for name, array in batch.items()}


def test_a_batch_of_steps_has_next_observations_and_the_arrays_of_returns():
    settings = PrioritizedReplay(100, FIELDS, n_step=3)._settings
    batch, _, tickets, weights, returns, columns, followers = new_batch(5, settings)
    assert shapes(batch) == {
        "obs": ((5, 2), "uint8"),
        "next_obs": ((5, 2), "uint8"),
        "action": ((5,), "int64"),
        "reward": ((5,), "float32"),
        "discount": ((5,), "float32"),
        "terminated": ((5,), "bool"),
    }
    assert (batch.tickets is tickets, batch.weights is weights) == (True, True)
    assert (tickets.dtype, weights.dtype) == (np.int64, np.float32)
    # The native ring writes into the arrays that the batch shows; the reward is a return, which it computes.
    assert [array is batch[name] for array, name in zip(returns, ("reward", "discount", "terminated"), strict=True)]
    assert columns[0] is batch["obs"]
    assert columns[2] is None
    assert followers[0] is batch["next_obs"]
    assert followers[1] is followers[2] is None


def test_a_batch_of_independent_transitions_has_its_fields():
    settings = PrioritizedReplay(100, {**FIELDS, "terminated": ((), "bool")}, next_of=())._settings
    batch, _, _, _, returns, columns, followers = new_batch(4, settings)
    assert list(batch) == ["obs", "action", "reward", "terminated"]
    assert returns == ()
    assert all(column is array for column, array in zip(columns, batch.values(), strict=True))
    assert followers == (None,) * 4


def test_a_batch_is_a_mapping_of_its_arrays():
    x = np.zeros((3, 2), np.float32)
    batch = Batch(np.arange(3), np.ones(3, np.float32), {"x": x, "y": np.zeros(3, bool)})
    assert batch["x"] is x
    assert (list(batch), len(batch), "x" in batch, "z" in batch) == (["x", "y"], 2, True, False)
    assert repr(batch) == "Batch(3 transitions: x=[3, 2] float32, y=[3] bool)"
    with pytest.raises(KeyError, match="the batch has no 'z'; it has 'x', 'y'"):
        batch["z"]


def test_arrays_of_a_batch_are_used_again_only_when_nobody_holds_them():
    replay = filled()
    batch = replay.sample(8)
    x, tickets = batch["x"], batch.tickets.copy()
    holders = [batch, batch["x"], batch.weights, batch.tickets[2:], memoryview(batch["x"]), batch._arrays]
    copy = x.copy()
    while holders:
        for _ in range(20):
            replay.sample(8)
        np.testing.assert_array_equal(x, copy)
        holders.pop()
        if holders:
            batch = None
    del x
    address = replay.sample(8)["x"].ctypes.data
    assert address == replay.sample(8)["x"].ctypes.data
    assert len(tickets) == 8
    many = [replay.sample(8) for _ in range(40)]  # more than are kept
    assert len({batch["x"].ctypes.data for batch in many}) == 40
    for batch in many:
        np.testing.assert_array_equal(batch["x"], batch.tickets)


def test_arrays_of_a_batch_are_changed_but_not_replaced():
    replay = filled()
    batch = replay.sample(8)
    for name in ("weights", "tickets"):
        with pytest.raises(AttributeError, match=f"batch.{name} is not replaced; keep the other array in a variable"):
            setattr(batch, name, getattr(batch, name) + 1)
    batch.weights *= 3
    assert (batch.weights == 3).all()
    del batch
    assert (replay.sample(8).weights == 1).all()

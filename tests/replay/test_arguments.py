"""What the standalone replay takes, converts and refuses."""

import numpy as np
import pytest
from tests.replay.small_replays import SCALAR, filled

from rollmill.replay import PrioritizedReplay


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_errors_that_give_no_priority_are_refused_before_anything_is_written(bad):
    replay = filled(alpha=1.0)
    before, after = np.empty(100, np.float32), np.empty(100, np.float32)
    replay._ring.priorities(before)
    with pytest.raises(ValueError, match=r"td_errors\[2\] is .*Nothing was updated; look for a loss that diverges"):
        replay.update_priorities(np.arange(4), np.array([1, 2, bad, 4], np.float32))
    replay._ring.priorities(after)
    np.testing.assert_array_equal(before, after)
    assert replay.max_priority == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_axes_in_another_order_are_refused(dtype):
    replay = PrioritizedReplay(10, {"x": ((2, 3, 4), "float32")})
    for shape in [(5, 4, 2, 3), (5, 3, 2, 4), (5, 1, 6, 4), (5, 2, 3, 4, 1), (5, 24)]:
        with pytest.raises(ValueError, match=r"x has shape .*; give \[N, 2, 3, 4\]"):
            replay.add(x=np.zeros(shape, dtype))
    assert len(replay) == 0
    replay.add(x=np.zeros((5, 2, 3, 4), dtype))
    assert len(replay) == 5


def test_what_can_be_meant_is_converted():
    replay = PrioritizedReplay(10, {"obs": {"a": ((2,), "float32"), "b": ((), "int64")}}, next_of=())
    replay.add(obs={"a": np.ones((3, 2)), "b": [1, 2, 3]})
    replay.add(**{"obs/a": np.ones((4, 4), np.float32)[::2, ::2], "obs/b": np.arange(2, dtype=np.int32)})
    replay.add(obs={"a": [1.0, 1.0], "b": 7})  # one
    assert len(replay) == 6
    batch = replay.sample(100)
    assert (batch["obs/a"] == 1).all()
    assert set(batch["obs/b"].tolist()) == {0, 1, 2, 3, 7}
    assert sorted(batch) == ["obs/a", "obs/b"]
    assert "100 transitions" in repr(batch)
    assert "6 of 10, independent transitions: obs/a, obs/b" in repr(replay)
    assert replay.nbytes > 0


FIELDS = {"obs": ((2,), "float32"), "reward": ((), "float32")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"obs": np.zeros((2, 2))},
            "add was not given reward, next_obs, terminated; it takes obs, reward, next_obs, t",
        ),
        ({"obs": np.zeros((3, 2))}, r"obs has shape \[3, 2\]; give \[2, 2\]"),
        ({"obs": np.zeros((2, 2), complex)}, "obs has dtype complex128, which is not converted to float32"),
        ({"terminated": np.zeros(2, int)}, "terminated has dtype int64, which is not converted to bool; give bool"),
        ({"action": np.zeros(2)}, "add does not know action; it takes obs, reward, next_obs, terminated, truncated"),
    ],
)
def test_what_add_refuses(arguments, message):
    replay = PrioritizedReplay(100, FIELDS, num_envs=2)
    whole = {"obs": np.zeros((2, 2)), "reward": [0, 0.0], "terminated": [True, True], "next_obs": np.zeros((2, 2))}
    with pytest.raises(ValueError, match=message):
        replay.add(**(arguments if "not given" in message else whole | arguments))
    assert len(replay) == 0
    replay.add(**whole)
    assert len(replay) == 2


def test_errors_may_be_tensors_without_gradients_only():
    torch = pytest.importorskip("torch")
    replay = filled()
    assert replay.update_priorities(replay.sample(4), torch.ones(4)) == 0
    with pytest.raises(ValueError, match=r"td_errors cannot be read as an array: .*detach\(\)"):
        replay.update_priorities(replay.sample(4), torch.ones(4, requires_grad=True))


def test_more_at_once_than_there_is_room_for_is_refused():
    with pytest.raises(ValueError, match="11 rows at once do not fit a capacity of 10"):
        filled(10, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "replay", "shared": False}, "path is 'replay' and shared False; .* leave one out"),
        ({"next_of": "obs"}, r"next_of is 'obs'; give a sequence of names, such as \('obs',\)"),
        ({"fields": {"a": {"b": ((), "int8")}, "a/b": ((), "int8")}}, r"\['a/b'\] are given twice"),
        ({"capacity": 0}, "capacity is 0; it must be a whole number from 1"),
    ],
)
def test_what_is_refused_to_begin_with(changes, message):
    with pytest.raises(ValueError, match=message):
        PrioritizedReplay(**{"capacity": 100, "fields": FIELDS, **changes})


def test_what_no_memory_holds_is_refused():
    fields = {f"f{i}": ((2**31 - 64,), "uint8") for i in range(512)}
    with pytest.raises(ValueError, match=r"capacity is 16777216 and a transition has .* give a smaller capacity"):
        PrioritizedReplay(2**24, {**fields, "g": ((32_768,), "uint8")}, next_of=(), shared=False)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "8"])
def test_a_batch_has_a_size(size):
    with pytest.raises(ValueError, match=r"batch_size is .* whole number of at least 1"):
        filled().sample(size)


def test_what_sample_and_update_refuse():
    replay = filled()
    with pytest.raises(ValueError, match="beta is -1"):
        replay.sample(4, beta=-1)
    with pytest.raises(ValueError, match="there is nothing to sample yet; add transitions first"):
        PrioritizedReplay(10, SCALAR).sample(4)
    with pytest.raises(ValueError, match=r"td_errors has shape \[3\]; give \[4\]"):
        replay.update_priorities(replay.sample(4), np.zeros(3))
    with pytest.raises(ValueError, match="td_errors or priorities, one of them"):
        replay.update_priorities([1], [1.0], priorities=[1.0])
    with pytest.raises(ValueError, match="td_errors or priorities, one of them"):
        replay.update_priorities([1])
    with pytest.raises(KeyError, match="the batch has no 'y'; it has 'x'"):
        replay.sample(4)["y"]


def test_errors_and_priorities_together_are_refused():
    replay = filled()
    batch, ones = replay.sample(8), np.ones(8, np.float32)
    for arguments in ({"td_errors": ones, "priorities": ones}, {}):
        with pytest.raises(ValueError, match="td_errors or priorities, one of them"):
            replay.update_priorities(batch, **arguments)

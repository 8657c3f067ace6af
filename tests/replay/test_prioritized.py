"""Independent transitions: the contents, frequencies and weights of samples."""

import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest
from tests.replay.small_replays import SCALAR, filled

from rollmill.replay import PrioritizedReplay


def test_a_private_replay_is_for_one_process():
    replay = filled(shared=False)
    assert (replay.sample(8)["x"] < 100).all()
    assert replay.view().sample(8).tickets.shape == (8,)
    with pytest.raises(ValueError, match="this replay was made with shared=False; leave that out"):
        pickle.dumps(replay)


@pytest.mark.parametrize(
    "name", ["add", "sample", "update", "load", "view", "len", "max_priority", "save", "flush", "uniform"]
)
def test_a_forked_child_refuses_its_copy_of_a_private_replay(tmp_path, name):
    replay = filled(shared=False)
    uniform = filled(shared=False, uniform=True)
    replay.save(tmp_path / "copy")
    batch = replay.sample(8)
    work = {
        "add": lambda: replay.add(x=[1]),
        "sample": lambda: replay.sample(8),
        "update": lambda: replay.update_priorities(batch, np.ones(8, np.float32)),
        "load": lambda: replay.load(tmp_path / "copy"),
        "view": replay.view,
        "len": lambda: len(replay),
        "max_priority": lambda: replay.max_priority,
        "save": lambda: replay.save(tmp_path / "another"),
        "flush": replay.flush,
        "uniform": lambda: uniform.sample(4),
    }[name]
    messages = multiprocessing.get_context("fork").SimpleQueue()

    def run():
        for _ in range(2):
            with pytest.raises(ValueError, match="this replay was made with shared=False") as caught:
                work()
            messages.put(str(caught.value))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    for _ in range(2):
        assert not messages.empty()
        assert "this replay was made with shared=False, and a forked child has only a copy" in messages.get()
    work()


def test_a_replay_is_no_copy_and_is_sent_only_to_a_child_that_is_being_started():
    for copier in (copy.copy, copy.deepcopy):
        for replay in (filled(), filled(shared=False)):
            with pytest.raises(
                ValueError, match="a replay cannot be copied; view returns another object for the same memory"
            ):
                copier(replay)
    with pytest.raises(ValueError, match=r"is sent only as an argument of multiprocessing\.Process"):
        pickle.dumps(filled())


def test_importing_it_imports_no_torch():
    code = "import sys, rollmill.replay; assert not {'torch', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (8,), (7, 5), (2, 33, 3)])
def test_every_shape_and_dtype_comes_back(dtype, shape):
    replay = PrioritizedReplay(37, {"a": (shape, dtype), "b": ((), "uint8"), "ticket": ((), "int64")})
    random = np.random.default_rng(0)
    kept = {}
    count = 0
    for size in (5, 1, 37, 20, 36):
        a = random.integers(0, 2, (size, *shape)) if dtype == "bool" else random.integers(0, 100, (size, *shape))
        a = a.astype(dtype)
        tickets = np.arange(count, count + size)
        replay.add(a=a, b=(tickets % 251).astype(np.uint8), ticket=tickets)
        kept |= dict(zip(tickets.tolist(), a, strict=True))
        count += size
        batch = replay.sample(50)
        assert batch["a"].dtype == dtype
        assert batch["a"].shape == (50, *shape)
        for i, ticket in enumerate(batch.tickets.tolist()):
            assert count - 37 <= ticket < count
            assert batch["ticket"][i] == ticket
            assert batch["b"][i] == ticket % 251
            np.testing.assert_array_equal(batch["a"][i], kept[ticket])


@pytest.mark.parametrize("stratified", [False, True])
def test_draws_follow_the_priorities(stratified):
    size, draws = 300, 400
    replay = filled(size, size, alpha=0.7, epsilon=1e-3, stratified=stratified)
    error = np.where(np.arange(size) % 10 == 0, 0.01, 1.0)
    replay.update_priorities(np.arange(size), error)
    p = (error + 1e-3) ** 0.7
    counts = np.zeros(size)
    for _ in range(draws):
        np.add.at(counts, replay.sample(256)["x"], 1)
    expected = draws * 256 * p / p.sum()
    chi2 = float(((counts - expected) ** 2 / expected).sum()) / (size - 1)
    # Five standard deviations; strata only make it less.
    assert chi2 < 1 + 5 * (2 / (size - 1)) ** 0.5
    if not stratified:
        assert chi2 > 1 - 5 * (2 / (size - 1)) ** 0.5


@pytest.mark.parametrize("weights", ["batch", "global", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_those_of_the_paper(weights, beta):
    random = np.random.default_rng(3)
    replay = PrioritizedReplay(500, SCALAR, weights=weights, alpha=0.6, epsilon=1e-2)
    replay.add(x=np.arange(300))  # not full: N is 300
    error = random.exponential(size=300)
    replay.update_priorities(np.arange(300), error)
    p = (error + 1e-2) ** 0.6
    all_weights = (300 * p / p.sum()) ** -beta
    batch = replay.sample(64, beta=beta)
    expected = all_weights[batch["x"]]
    if weights != "none":
        expected = expected / (expected if weights == "batch" else all_weights).max()
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-5)


def test_new_transitions_get_the_highest_priority_and_the_oldest_go():
    replay = filled(4, 4, alpha=1.0)
    replay.update_priorities([0, 1, 2, 3], [1.0, 2.0, 8.0, 4.0])
    assert replay.max_priority == pytest.approx(8.0)
    replay.add(x=[4])
    counts = np.bincount(replay.sample(20_000)["x"], minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 20_000, np.array([2, 8, 4, 8]) / 22, atol=0.02)


def test_the_highest_priority_decays():
    replay = filled(alpha=1.0, max_priority_decay=0.5)
    replay.update_priorities([0], [8.0])
    for expected in (4.0, 2.0, 1.0):
        replay.update_priorities([1], [0.5])
        assert replay.max_priority == pytest.approx(expected)


def test_a_highest_priority_that_has_decayed_is_loaded_as_it_was(tmp_path):
    replay = PrioritizedReplay(100, {"x": ((), "float32")}, next_of=(), max_priority_decay=0.5)
    replay.add(x=np.arange(10))
    replay.update_priorities(replay.sample(1), priorities=[1e9])
    for _ in range(40):
        assert replay.update_priorities([], []) == 0
    assert replay.max_priority < 1.0
    replay.save(tmp_path / "copy")
    other = PrioritizedReplay(100, {"x": ((), "float32")}, next_of=())
    other.load(tmp_path / "copy")
    assert other.max_priority == replay.max_priority


def test_the_highest_priority_decays_no_lower_than_that_of_an_error_of_0():
    replay = filled(alpha=0.5, epsilon=1e-4, max_priority_decay=1e-6)
    for _ in range(10):
        replay.update_priorities([1000], [1.0])  # late
    assert replay.max_priority == pytest.approx(1e-2)
    replay.add(x=np.arange(60))
    assert len(replay) == 100
    assert (replay.sample(100, beta=0.5).weights > 0).all()


def test_a_late_update_does_nothing():
    replay = filled(10, 10)
    tickets = replay.sample(32).tickets.copy()
    replay.add(x=np.arange(10, 20))
    assert replay.update_priorities(tickets, np.full(32, 100.0)) == 32
    assert replay.max_priority == 1.0
    replay.add(x=np.arange(5))
    assert replay.update_priorities(np.arange(25), np.zeros(25)) == 15
    assert replay.update_priorities([-1, -(2**63), 25, 2**63 - 1], np.ones(4)) == 4
    assert len(replay) == 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0])
def test_priorities_can_be_given_as_they_are(bad):
    replay = filled()
    assert replay.update_priorities(np.arange(3), priorities=np.array([1, 2, 3])) == 0
    assert replay.max_priority == 3.0
    with pytest.raises(ValueError, match=r"priorities\[1\] is .*must be above 0"):
        replay.update_priorities(np.arange(2), priorities=np.array([1, bad], np.float32))


def test_errors_count_by_their_magnitude():
    replay = filled(2, 2, alpha=1.0)
    replay.update_priorities([0, 1], [-3.0, 3.0])
    priorities = np.empty(2, np.float32)
    replay._ring.priorities(priorities)
    assert priorities[0] == priorities[1] == pytest.approx(3.0)


def test_of_equal_tickets_the_last_error_stays():
    replay = filled(3, 3, alpha=1.0, epsilon=0.5)
    replay.update_priorities([1, 1, 1], [7.0, 9.0, 2.0])
    priorities = np.empty(3, np.float32)
    replay._ring.priorities(priorities)
    assert priorities[1] == 2.5


def test_a_uniform_replay_ignores_errors():
    replay = filled(uniform=True)
    assert replay.update_priorities(np.arange(100), np.arange(100.0)) == 0
    batch = replay.sample(50_000)
    assert (batch.weights == 1).all()
    assert np.bincount(batch["x"], minlength=100).min() > 350


def test_the_same_seed_draws_the_same():
    draws = [[filled(seed=seed).sample(64)["x"].tolist() for _ in range(2)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    replay = filled()
    assert replay.sample(64)["x"].tolist() != replay.view().sample(64)["x"].tolist()


def test_a_beta_that_was_set_is_that_of_views_and_children():
    replay = filled()
    replay.beta = 0.9
    assert replay.view().beta == replay.view(num_envs=1).beta == 0.9


def test_a_field_may_be_called_self():
    replay = PrioritizedReplay(10, {"self": ((), "int64")})
    replay.add(self=[3])
    assert replay.sample(1)["self"] == [3]

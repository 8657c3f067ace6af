"""Single steps of the replay over slots against a literal one."""

import math

import numpy as np
import pytest
from literal_replay import DISCOUNT, Case, Run, shown_as

from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReplaySampler, ReturnRule

CASES = [
    Case(1, 1, "zero", steps=4, rows=3, slots=5, groups=1, remover="fifo"),
    Case(3, 1, "zero", steps=4, rows=3, slots=6, groups=2, remover="fifo"),
    Case(5, 4, "zero", steps=5, rows=2, slots=7, groups=2, remover="fifo"),
    Case(2, 3, "repeat", steps=3, rows=1, slots=4, groups=1, remover="fifo"),
    Case(3, 3, "repeat", steps=6, rows=2, slots=9, groups=3, remover="uniform"),
    Case(4, 4, "zero", steps=4, rows=2, slots=8, groups=2, remover="lowest_priority"),
    Case(1, 2, "zero", steps=1, rows=2, slots=6, groups=2, remover="fifo"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("seed", range(2))
def test_what_is_live_and_what_is_drawn_are_those_of_a_literal_replay(case, seed):
    n = case.n
    config = ReplayConfig(capacity=1000, min_size=1, n_step=n, remover=case.remover)
    run = Run(case, seed, config)
    sampler = ReplaySampler(run.store, config, ReturnRule(DISCOUNT), np.array([seed, 0], np.uint64))

    def needed(world, t):
        whole = world.transition(t, n)
        return None if whole is None else whole[3]

    def check():
        expected = run.live(needed)
        run.check_leaves(expected)
        if not expected:
            assert not sampler.draw(sampler.make_batch(4), 0.0)
            return
        batch = sampler.make_batch(64)
        assert sampler.draw(batch, 0.0)
        for i, leaf in enumerate(batch.leaf.tolist()):
            world, t = expected[leaf]
            reward, discount, then, _ = world.transition(t, n)
            assert batch.reward[i] == pytest.approx(reward, abs=1e-6)
            assert batch.discount[i] == pytest.approx(discount, abs=1e-7)
            assert batch.at_step["action_discrete"][i, 0] == world.steps[t][0]
            assert batch.observation["x"][i] == world.shown[t]
            assert batch.next_observation["x"][i] == world.shown[then]
            for entry, at in ((batch.observation, t), (batch.next_observation, then)):
                np.testing.assert_array_equal(entry["obs"][i], shown_as(world, at))
            assert batch.weight[i] == 1.0

    for step in range(40 * case.steps):
        run.step()
        if run.random.random() < 0.4:
            check()
        # As the run of another process, at each phase of a slot.
        if step % (5 * case.steps + 1) == 0:
            run.begin_processes()
            check()
    assert run.store.tree.verify()
    assert math.isfinite(run.store.tree.total())


def test_weights_are_those_of_the_drawn_priorities():
    config = ReplayConfig(capacity=100, min_size=1, priorities="proportional", alpha=1.0)
    run = Run(CASES[0], 5, config)
    for _ in range(100):
        run.step()
    store, beta = run.store, 0.7
    live = np.array(sorted(run.live(lambda world, t: 1)))
    store.tree.assign(live, run.random.uniform(0.01, 10, len(live)).astype(np.float32))
    sampler = ReplaySampler(store, config, ReturnRule(DISCOUNT), np.array([5, 0], np.uint64))
    batch = sampler.make_batch(16)
    assert sampler.draw(batch, beta)
    priorities = np.empty(store.tree.capacity, np.float32)
    store.tree.priorities(priorities)
    drawn = priorities[batch.leaf].astype(np.float64)
    np.testing.assert_allclose(batch.weight, (drawn / drawn.min()) ** -beta, rtol=1e-5)


def test_errors_without_measure_are_the_largest_priorities_that_there_are():
    config = ReplayConfig(capacity=1000, min_size=1, priorities="proportional", alpha=1.0)
    run = Run(CASES[0], 0, config)
    for _ in range(30):
        run.step()
    sampler = ReplaySampler(run.store, config, ReturnRule(DISCOUNT), np.array([0, 0], np.uint64))
    batch = sampler.make_batch(8)
    assert sampler.draw(batch, 1.0)
    sampler.update(batch, np.full(8, 3e38, np.float32))
    assert run.store.tree.max_priority == 2.0**63
    assert run.store.tree.verify()
    assert sampler.draw(batch, 1.0)
    assert np.isfinite(batch.weight).all()

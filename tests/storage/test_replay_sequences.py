"""Sequences of the replay over slots, with burn-in and recurrent states, against those of a literal one."""

import numpy as np
import pytest
from literal_replay import DISCOUNT, Case, Run, mask_of, shown_as, state_of

from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReturnRule
from rollmill.storage.sequence_sampler import SequenceSampler

# (case, burn_in, sequence_length, stride)
SEQUENCES = [
    (Case(1, 1, "zero", steps=6, rows=3, slots=6, groups=1, remover="fifo"), 0, 4, 2),
    (Case(2, 1, "zero", steps=6, rows=2, slots=9, groups=2, remover="fifo"), 2, 3, 3),
    (Case(3, 4, "zero", steps=8, rows=2, slots=7, groups=2, remover="fifo"), 2, 4, 2),
    (Case(3, 3, "repeat", steps=6, rows=2, slots=9, groups=3, remover="uniform"), 1, 2, 1),
    (Case(2, 3, "zero", steps=4, rows=2, slots=10, groups=2, remover="lowest_priority"), 0, 3, 2),
    (Case(4, 2, "repeat", steps=7, rows=1, slots=5, groups=1, remover="fifo"), 3, 1, 1),
    (Case(1, 5, "zero", steps=4, rows=2, slots=8, groups=2, remover="fifo"), 1, 3, 2),
    (Case(1, 1, "zero", steps=1, rows=2, slots=6, groups=2, remover="fifo"), 0, 1, 1),
]


def check_sequences(batch, expected, config):
    """Each sequence of a batch against the row that it is of: ``expected`` is leaf -> (world, t)."""
    n, window, burn_in = config.n_step, config.window, config.burn_in
    assert batch.learned == slice(burn_in, burn_in + config.sequence_length)
    for i, leaf in enumerate(batch.leaf.tolist()):
        world, t = expected[leaf]
        assert t % config.stride == 0
        np.testing.assert_array_equal(batch.rnn_state[i], state_of(world.shown[t]))
        for k in range(window + 1):
            assert batch.observation["x"][k, i] == world.shown[t + k]
            np.testing.assert_array_equal(batch.observation["obs"][k, i], shown_as(world, t + k))
            np.testing.assert_array_equal(batch.action_mask[k, i], mask_of(world.shown[t + k]))
            assert batch.reset[k, i] == world.reset[t + k]
        for k in range(window):
            assert batch.at_step["action_discrete"][k, i, 0] == world.steps[t + k][0]
        for k in range(config.sequence_length):
            at = t + burn_in + k
            whole = world.transition(at, n)
            assert batch.valid[k, i] == (whole is not None)
            reward, discount, then, _ = whole or (0.0, 0.0, at, 0)
            assert batch.reward[k, i] == pytest.approx(reward, abs=1e-6)
            assert batch.discount[k, i] == pytest.approx(discount, abs=1e-7)
            assert t + batch.then[k, i] == then
        assert batch.weight[i] == 1.0


def sequences_of(case, burn_in, length, stride):
    return ReplayConfig(
        capacity=1000,
        min_size=1,
        n_step=case.n,
        remover=case.remover,
        sequence_length=length,
        burn_in=burn_in,
        sequence_stride=stride,
    )


@pytest.mark.parametrize(("case", "burn_in", "length", "stride"), SEQUENCES, ids=lambda x: str(x).replace(" ", ""))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_sequences_are_those_of_a_literal_replay(case, burn_in, length, stride, seed):
    config = sequences_of(case, burn_in, length, stride)
    run = Run(case, seed, config, state_size=3)
    sampler = SequenceSampler(run.store, config, ReturnRule(DISCOUNT), np.array([seed, 0], np.uint64))
    batch, most = sampler.make_batch(32), 0
    for step in range((60 if seed else 25) * case.steps):
        run.step()
        is_restarted = step % (7 * case.steps + 1) == 0
        if is_restarted:
            run.begin_processes()
        if is_restarted or run.random.random() < 0.4:
            expected = run.live(
                lambda world, t: config.window if t % stride == 0 and t + config.window <= len(world.steps) else None
            )
            run.check_leaves(expected)
            most = max(most, len(expected))
            assert sampler.draw(batch, 0.0) == bool(expected)
            if expected:
                check_sequences(batch, expected, config)
    assert most > case.rows
    assert run.store.tree.verify()


def test_priorities_of_sequences_that_have_been_evicted_stay_zero():
    case, *numbers = SEQUENCES[1]
    config = sequences_of(case, *numbers)
    run = Run(case, 3, config, state_size=3)
    sampler = SequenceSampler(run.store, config, ReturnRule(DISCOUNT), np.array([3, 0], np.uint64))
    for _ in range(60 * case.steps):
        run.step()
    batch = sampler.make_batch(64)
    assert sampler.draw(batch, 0.0)
    assert sampler.update(batch, np.ones(64, np.float32)) == 0
    for _ in range(20 * case.steps):
        run.step()
    assert sampler.update(batch, np.ones(64, np.float32)) == 64
    run.check_leaves(
        run.live(lambda world, t: config.window if t % 3 == 0 and t + config.window <= len(world.steps) else None)
    )

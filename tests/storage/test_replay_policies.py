"""Several policies in the replay over slots: each draws from its own steps, against literal rows."""

import math
from functools import partial

import numpy as np
import pytest
from literal_replay import DISCOUNT, Case, Run, shown_as
from literal_turns import Chances, Turns
from test_replay_sequences import check_sequences, sequences_of
from test_replay_turns import needed as turns_needed

from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReplaySampler, ReturnRule
from rollmill.storage.sequence_sampler import SequenceSampler

PLAYERS = PlayerIds(policies=3, guests=1)
CASES = [
    Case(1, 1, "zero", steps=4, rows=3, slots=5, groups=1, remover="fifo"),
    Case(3, 1, "zero", steps=4, rows=3, slots=6, groups=2, remover="fifo"),
    Case(3, 3, "repeat", steps=6, rows=2, slots=9, groups=3, remover="uniform"),
    Case(4, 4, "zero", steps=4, rows=2, slots=8, groups=2, remover="lowest_priority"),
]
TURNS = Chances(acts=0.5, fails=0.05, terminated=0.1, truncated=0.1, has_final=0.8)


def as_learner(run, policy):
    """The replay as the learner of a policy sees it."""
    run.store.policy = policy
    return run.store


def of_policy(run, expected, policy):
    return {leaf: place for leaf, place in expected.items() if run.player_at(leaf) == policy}


def samplers_of(run, config, seed, kind=ReplaySampler):
    return [
        kind(as_learner(run, policy), config, ReturnRule(DISCOUNT), np.array([seed, policy], np.uint64))
        for policy in range(PLAYERS.policies)
    ]


def draws_of(run, samplers, expected, size=64):
    """For each policy: its live leaves, and a batch of them."""
    for policy, sampler in enumerate(samplers):
        own = of_policy(run, expected, policy)
        run.check_leaves(own, policy)
        as_learner(run, policy)
        batch = sampler.make_batch(size)
        assert sampler.draw(batch, 0.0) == bool(own)
        if own:
            assert set(batch.leaf.tolist()) <= set(own)
            yield policy, own, batch


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("seed", range(2))
def test_each_policy_draws_the_steps_at_which_it_acted(case, seed):
    config = ReplayConfig(capacity=1000, min_size=1, n_step=case.n, remover=case.remover)
    run = Run(case, seed, config, players=PLAYERS)
    samplers = samplers_of(run, config, seed)

    def needed(world, t):
        whole = world.transition(t, case.n)
        return None if whole is None else whole[3]

    drawn = set()
    for step in range(40 * case.steps):
        run.step()
        if run.random.random() < 0.4:
            for policy, own, batch in draws_of(run, samplers, run.live(needed)):
                drawn.add(policy)
                for i, leaf in enumerate(batch.leaf.tolist()):
                    world, t = own[leaf]
                    reward, discount, then, _ = world.transition(t, case.n)
                    assert batch.reward[i] == pytest.approx(reward, abs=1e-6)
                    assert batch.discount[i] == pytest.approx(discount, abs=1e-7)
                    assert batch.observation["x"][i] == world.shown[t]
                    assert batch.next_observation["x"][i] == world.shown[then]
                    np.testing.assert_array_equal(batch.observation["obs"][i], shown_as(world, t))
        if step % (5 * case.steps + 1) == 0:
            run.begin_processes()
    assert drawn == {0, 1, 2}
    assert all(tree.verify() and math.isfinite(tree.total()) for tree in run.store.trees)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_each_policy_draws_its_own_turns(n, seed):
    case = Case(n, 1, "zero", steps=5, rows=3, slots=9, groups=2, remover="fifo")
    config = ReplayConfig(capacity=1000, min_size=1, n_step=n)
    run = Run(
        case,
        seed,
        config,
        make_world=lambda random, depth, padding: Turns(random, TURNS),
        agents=("a", "b", "c"),
        players=PLAYERS,
    )
    samplers = samplers_of(run, config, seed)
    for _ in range(200):
        run.step()
        for _, own, batch in draws_of(run, samplers, run.live(partial(turns_needed, case)), size=16):
            for i, leaf in enumerate(batch.leaf.tolist()):
                world, t = own[leaf]
                reward, discount, then, _ = world.transition(t, n)
                assert batch.reward[i] == pytest.approx(reward, abs=1e-6)
                assert batch.discount[i] == pytest.approx(discount, abs=1e-7)
                assert batch.next_observation["x"][i] == world.shown[t if then is None else then]
    for policy, limiter in enumerate(run.store.limiters):
        held = sum(
            run.worlds[number, b].steps[t][4]
            for number, first in run.holds.values()
            for b in range(case.rows)
            for t in range(first, min(first + case.steps, len(run.worlds[number, b].steps)))
            if run.who[number, b][t] == policy
        )
        assert limiter.held == held


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_a_policy_give_it_sequences(seed):
    case = Case(2, 1, "zero", steps=6, rows=4, slots=14, groups=3, remover="fifo")
    config = sequences_of(case, 2, 3, 3)
    run = Run(case, seed, config, state_size=3, players=PLAYERS, stay=True)
    run.store.state_size = 3
    samplers = samplers_of(run, config, seed, SequenceSampler)

    def needed(world, t):
        is_whole = t % config.stride == 0 and t + config.window <= len(world.steps)
        return config.window if is_whole else None

    drawn = 0
    for _ in range(200):
        run.step()
        for _, own, batch in draws_of(run, samplers, run.live(needed), size=16):
            check_sequences(batch, own, config)
            drawn += 1
    assert drawn > 50


def test_priorities_of_one_policy_leave_those_of_others_alone():
    config = ReplayConfig(capacity=1000, min_size=1, priorities="proportional", alpha=1.0)
    run = Run(CASES[0], 0, config, players=PLAYERS)
    while not all(tree.total() for tree in run.store.trees):
        run.step()
    samplers = samplers_of(run, config, 0)
    before = [tree.total() for tree in run.store.trees]
    as_learner(run, 1)
    batch = samplers[1].make_batch(8)
    assert samplers[1].draw(batch, 0.4)
    assert samplers[1].update(batch, np.full(8, 7.0, np.float32)) == 0
    after = [tree.total() for tree in run.store.trees]
    assert after[1] > before[1]
    assert (after[0], after[2]) == (before[0], before[2])
    assert run.store.trees[1].max_priority > 1 == run.store.trees[0].max_priority
    slot = int(batch.leaf[0]) // (CASES[0].steps * CASES[0].rows)
    assert run.store.priority_of(slot) >= 7.0

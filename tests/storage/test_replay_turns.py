"""Turns of several agents in the replay over slots, against those of literal rows."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_replay import DISCOUNT, Case, Run
from literal_turns import Chances, Turns

from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReplaySampler, ReturnRule

CHANCES = st.builds(
    Chances,
    acts=st.sampled_from([0.15, 0.5, 0.9, 1.0]),
    fails=st.sampled_from([0.0, 0.05]),
    terminated=st.sampled_from([0.0, 0.05, 0.2]),
    truncated=st.sampled_from([0.0, 0.05, 0.2]),
    has_final=st.sampled_from([0.5, 1.0]),
)


@st.composite
def cases(draw):
    steps, groups = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    return Case(
        n=draw(st.integers(1, steps)),
        depth=1,
        padding="zero",
        steps=steps,
        rows=draw(st.integers(1, 3)),
        slots=2 * groups + draw(st.integers(1, 4)),
        groups=groups,
        remover=draw(st.sampled_from(["fifo", "uniform", "lowest_priority"])),
    )


def make_run(case, seed, chances):
    config = ReplayConfig(capacity=1000, min_size=1, n_step=case.n, remover=case.remover, stratified=True)

    def make_world(random, depth, padding):
        return Turns(random, chances)

    return Run(case, seed, config, make_world=make_world, agents=("first", "second")), config


def needed(case, world, t):
    """Steps of the transition at t; None if it is not whole, or needs a third slot."""
    whole = world.transition(t, case.n)
    if whole is None or (t + whole[3] - 1) // case.steps > t // case.steps + 1:
        return None
    return whole[3]


def check(run, sampler, clip):
    """Everything that can be drawn, each at least once."""
    case, store = run.case, run.store
    expected = run.live(partial(needed, case))
    run.check_leaves(expected)
    assert store.size == sum(
        sum(step[4] for step in run.worlds[number, b].steps[first : first + case.steps])
        for number, first in run.holds.values()
        for b in range(case.rows)
    )
    if not expected:
        assert not sampler.draw(sampler.make_batch(4), 0.0)
        return
    batch = sampler.make_batch(2 * len(expected))
    assert sampler.draw(batch, 0.0)
    assert set(batch.leaf.tolist()) == set(expected)
    for i, leaf in enumerate(batch.leaf.tolist()):
        world, t = expected[leaf]
        reward, discount, then, _ = world.transition(t, case.n, clip)
        assert batch.reward[i] == pytest.approx(reward, abs=1e-5)
        assert batch.discount[i] == pytest.approx(discount, abs=1e-6)
        assert batch.at_step["action_discrete"][i, 0] == world.steps[t][0]
        assert batch.observation["x"][i] == world.shown[t]
        # Nothing is written behind a termination, and what is left there must not be read.
        assert batch.next_observation["x"][i] == world.shown[t if then is None else then]


@given(case=cases(), chances=CHANCES, seed=st.integers(0, 2**31), clip=st.sampled_from([float("inf"), 1.0]))
@settings(max_examples=60, deadline=None)
def test_what_is_live_and_what_is_drawn_are_turns_of_literal_rows(case, chances, seed, clip):
    run, config = make_run(case, seed, chances)
    sampler = ReplaySampler(run.store, config, ReturnRule(DISCOUNT, clip=clip), np.array([seed, 0], np.uint64))
    for step in range(1, 15 * case.steps * case.groups):
        run.step()
        if run.random.random() < 0.3:
            check(run, sampler, clip)
        if step % (7 * case.steps + 1) == 0:  # as the run of another process, at each phase of a slot
            run.begin_processes()
            check(run, sampler, clip)
    assert run.store.tree.verify()


def test_a_turn_that_needs_a_third_slot_is_never_drawn():
    """The row acts at t = 0 and again at t = 7, in the slot after the next one; then at every step."""
    acts = [t == 0 or t >= 7 for t in range(13)]

    class Waits(Turns):
        def happens(self, chance):
            return chance == 1.0 and acts[len(self.acts)]

    case = Case(1, 1, "zero", steps=3, rows=1, slots=8, groups=1, remover="fifo")
    config = ReplayConfig(capacity=1000, min_size=1)
    run = Run(
        case,
        0,
        config,
        make_world=lambda random, depth, padding: Waits(random, Chances(1.0, 0.0, 0.0, 0.0)),
        agents=("first", "second"),
    )
    for _ in range(12):
        run.step()
    assert run.worlds[0, 0].transition(0, 1)[2] == 7
    live = run.live(partial(needed, case))
    assert [t for _, t in live.values()] == [7, 8, 9, 10, 11]
    run.check_leaves(live)

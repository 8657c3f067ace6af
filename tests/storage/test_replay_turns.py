"""Turns of several agents in the replay over slots, against those of literal rows."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_replay import DISCOUNT, Case, Run, make_store
from literal_turns import Chances, Turns
from tests.envs.agent_games import AGENTS, Crowd, Rounds, choose, plain_turns

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.registry import register_env
from rollmill.rollout.slot_policies import EvictingSlots
from rollmill.rollout.slot_views import HostedGroup
from rollmill.storage.removers import make_remover
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
        # After a termination nothing is written; old contents must not be read.
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


def test_flags_of_steps_that_were_never_counted_leave_with_their_slots():
    """A process that was killed between a step's flags and its count has left them."""
    case = Case(1, 1, "zero", steps=3, rows=2, slots=5, groups=1, remover="fifo")
    run, config = make_run(case, 0, Chances(0.5, 0.0, 0.1, 0.1))
    for _ in range(5):
        run.step()
    run.store.arrays["valid"][:] = True
    run.store = run.open()
    run.begin_processes()
    for _ in range(6 * case.slots * case.steps):
        run.step()
        assert run.store.limiter.held >= 0
    check(run, ReplaySampler(run.store, config, ReturnRule(DISCOUNT), np.array([0, 0], np.uint64)), float("inf"))


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


@pytest.mark.parametrize("game", [Crowd, Rounds])
@pytest.mark.parametrize("n", [1, 3])
def test_turns_of_games_are_those_of_a_plain_loop(game, n, monkeypatch):
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/game", game)
    env = EnvConfig(name="test/game")
    spec, seeds, agents = probe(env), [3, 11], len(AGENTS)
    rows = len(seeds) * agents
    config = ReplayConfig(capacity=10_000, min_size=1, n_step=n, stratified=True)
    # No episode is longer than a slot, so that no transition needs a third one.
    store = make_store(spec, config, slots=20, steps=16, rows=rows)
    hosted = HostedGroup(index=0, environments=make_group(env, len(seeds), seeds, agents=spec.agents))
    slots = EvictingSlots(store, 0, make_remover("fifo", np.random.default_rng(0), store.priority_of))
    group, views = hosted.environments, slots.views
    (name,) = store.observation
    slots.begin(hosted)
    group.reset(views.observation(hosted, 0))
    assert slots.advance(hosted)
    for _ in range(200):
        seen = views.observation(hosted, hosted.step)
        actions, _ = views.actions(hosted, hosted.step)
        for row in np.flatnonzero(seen.acts):
            actions[row] = choose(row % agents, tuple(seen.observation[name][row].tolist()))
        group.step(actions, None, views.observation(hosted, hosted.step + 1), views.outcome(hosted, hosted.step))
        hosted.step += 1
        assert slots.advance(hosted)
    expected = {}
    for index, seed in enumerate(seeds):
        episodes = plain_turns(game(), seed, int(group.episodes[index]) - 1)  # the last one may be under way
        for episode, agent in itertools.product(episodes, range(agents)):
            turns = episode[agent]
            for t, turn in enumerate(turns):
                part, then = turns[t : t + n], turns[t + n : t + n + 1]
                reward = sum(DISCOUNT**i * one.reward for i, one in enumerate(part))
                after = then[0].observation if then else part[-1].final
                discount = 0.0 if after is None else DISCOUNT ** len(part)
                expected[index * agents + agent, turn.observation] = turn.action, reward, discount, after
    sampler = ReplaySampler(store, config, ReturnRule(DISCOUNT), np.array([0, 0], np.uint64))
    batch = sampler.make_batch(4 * store.size)
    assert sampler.draw(batch, 0.0)
    drawn = set()
    for i, leaf in enumerate(batch.leaf.tolist()):
        key = leaf % rows, tuple(batch.observation[name][i].tolist())
        if key not in expected:
            continue
        drawn.add(key)
        action, reward, discount, after = expected[key]
        assert batch.at_step["action_discrete"][i, 0] == action
        assert batch.reward[i] == pytest.approx(reward, abs=1e-4)
        assert batch.discount[i] == pytest.approx(discount, abs=1e-6)
        assert tuple(batch.next_observation[name][i].tolist()) == (key[1] if after is None else after)
    assert drawn == set(expected)
    assert len(drawn) > 100

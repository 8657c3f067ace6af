"""Detection of frame stacks, and their exact reconstruction by the replay."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.registry import register_env
from rollmill.envs.stacking import stack_of
from rollmill.envs.views import ObservationView, OutcomeView
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import FrameStack
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReplaySampler, ReturnRule
from rollmill.storage.slots import NO_SLOT, Topology


def stacked_cartpole(**kwargs):
    return wrappers.TimeLimit(wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), **kwargs), 15)


class Halved(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2


def of_space(space):
    return wrappers.FrameStackObservation(Positive(space), 3, padding_type="zero")


FROM_FIVE = spaces.Box(5, 1000, (2,), np.float32)


class Positive(gymnasium.Env):
    """Returns observations of at least 5."""

    action_space = spaces.Discrete(2)

    def __init__(self, space=FROM_FIVE):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        return np.full(2, 10, np.float32), {}


class Curious(gymnasium.Wrapper):
    def step(self, action):
        return self.env.step(action)


class Doubled(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation * 2


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (stacked_cartpole(stack_size=4), FrameStack(depth=4, padding="repeat")),
        (Halved(stacked_cartpole(stack_size=2, padding_type="zero")), FrameStack(depth=2, padding="zero")),
        (stacked_cartpole(stack_size=4, padding_type=np.full(4, 0.1, np.float32)), None),
        (stacked_cartpole(stack_size=1), None),
        (wrappers.FrameStackObservation(Positive(), 3), FrameStack(depth=3, padding="repeat")),
        # Gymnasium pads this space with fives.
        (wrappers.FrameStackObservation(Positive(), 3, padding_type="zero"), None),
        (of_space(spaces.Dict({"near": spaces.Box(-1, 1, (2,)), "far": spaces.Box(5, 9, (1,))})), None),
        (of_space(spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Dict({"far": spaces.Box(-9, -5, (1,))})])), None),
        (of_space(spaces.Dict({"near": spaces.Box(-1, 1, (2,))})), FrameStack(depth=3, padding="zero")),
        # Gymnasium pads this space with the smallest choices.
        (of_space(spaces.MultiDiscrete([3, 3], start=[0, 1])), None),
        (of_space(spaces.MultiDiscrete([3, 3])), FrameStack(depth=3, padding="zero")),
        (Doubled(stacked_cartpole(stack_size=4)), None),
        (Curious(stacked_cartpole(stack_size=4)), None),
        (gymnasium.make("CartPole-v1"), None),
    ],
)
def test_frame_stack_is_detected_by_its_wrapper(env, expected):
    assert stack_of(env) == expected
    env.close()


@pytest.fixture(
    params=[
        ("stacked_repeat", EnvConfig(name="stacked_repeat")),
        ("stacked_zero", EnvConfig(name="stacked_zero")),
        ("atari", EnvConfig(name="atari/breakout", max_episode_steps=25)),
        ("colour", EnvConfig(name="atari/breakout", max_episode_steps=25, kwargs={"grayscale": False})),
        # Their stacks begin with frames of the previous episode, so they are stored whole.
        ("kept_same", EnvConfig(name="atari/pong", max_episode_steps=25, kwargs={"autoreset_mode": "SameStep"})),
        ("kept_lives", EnvConfig(name="atari/breakout", kwargs={"life_loss_info": True})),
    ],
    ids=lambda param: param[0],
)
def env(request):
    name, config = request.param
    if name.startswith("stacked"):
        padding = "reset" if name == "stacked_repeat" else "zero"
        register_env(name, lambda: stacked_cartpole(stack_size=3, padding_type=padding))
    else:
        pytest.importorskip("ale_py")
    return config


def test_replay_reconstructs_stacks_exactly(env, request):
    is_kept = "kept" in request.node.callspec.id
    rows, steps, num_slots = 2, 8, 60
    spec = probe(env)
    assert (spec.observation["obs"].stack is None) is is_kept
    topology = Topology(
        rollout_length=steps,
        group_rows=rows,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(num_slots,),
    )
    config = ReplayConfig(min_size=1, n_step=2)
    fields = replay_fields(spec, rollout_length=steps)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    limits = RateLimits(update_interval=1, min_size=1, error_buffer=1e9, total_steps=10**9)
    store = ReplayStore(Arena.create(layout, poison=True), spec, topology, config, limits, create=True)
    frames = 0 if is_kept else 1
    assert store.observation["obs"].shape[3:] == spec.observation["obs"].shape[frames:], "single frames are stored"
    group = make_group(env, rows, [3, 4])
    random = np.random.default_rng(0)
    lengths = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    emitted = {}

    def view(slot, step):
        return ObservationView(store.shown(0, slot, step), None, store.arrays["reset"][slot, step])

    def keep(slot, step):
        store.keep_newest_frames(0, slot, step)
        for row in range(rows):
            emitted[(slot * (steps + 1) + step) * rows + row] = store.shown(0, slot, step)["obs"][row].copy()

    pending = np.zeros(rows, np.int64)
    store.begin(0, NO_SLOT)
    group.reset(view(0, 0))
    keep(0, 0)
    for slot in range(num_slots):
        if slot:
            store.begin(slot, slot - 1)
            for name in store.carried:
                store.arrays[name][slot, 0] = store.arrays[name][slot - 1, steps]
            keep(slot, 0)
        for step in range(steps):
            actions = random_actions(spec.action, None, rows, random)
            arrays = store.arrays
            outcome = OutcomeView(
                *(arrays[name][slot, step] for name in ("reward", "terminated", "truncated", "valid")), *lengths
            )
            group.step(*actions, view(slot, step + 1), outcome)
            keep(slot, step + 1)
            store.commit(slot, step, pending)
    group.close()
    assert store.arrays["reset"].sum() > 2 * rows, "episodes must have ended for padding to be seen"
    sampler = ReplaySampler(store, config, ReturnRule(0.99), np.zeros(2, np.uint64))
    batch = sampler.make_batch(400)
    assert sampler.draw(batch, 0.0)
    leaf = batch.leaf
    terminated, truncated, valid = (store.arrays[name].reshape(-1) for name in ("terminated", "truncated", "valid"))
    has_one_step = terminated[leaf] | truncated[leaf] | ~valid[(leaf + rows) % valid.size]

    def cell_of(steps_of_rows):  # a slot has one more observation than steps
        return steps_of_rows + steps_of_rows // (steps * rows) * rows

    now, then = cell_of(leaf), cell_of(leaf + np.where(has_one_step, 0, rows)) + rows
    for cells, entry in ((now, batch.observation), (then, batch.next_observation)):
        for i, cell in enumerate(cells.tolist()):
            np.testing.assert_array_equal(entry["obs"][i], emitted[cell])

"""The replay over slots against a literal one that keeps every step of every row in lists."""

import itertools
import math
from collections import deque
from typing import NamedTuple

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec, FrameStack
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.removers import make_remover
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReplaySampler, ReturnRule
from rollmill.storage.slots import NO_SLOT, Topology

DISCOUNT = 0.9
LIMITS = RateLimits(update_interval=1.0, min_size=1, error_buffer=1e12, total_steps=10**12)


def env_spec(stack=None):
    frame = (2, 3)
    shape = frame if stack is None else (stack.depth, *frame)
    return EnvSpec(
        name="test",
        observation={
            "obs": ArraySpec(shape=shape, dtype="int32", stack=stack),
            "x": ArraySpec(shape=(), dtype="int64"),
        },
        action=ActionSpec(heads=(CategoricalHead(n=10),), structure="discrete"),
    )


def make_store(spec, config, *, slots, steps, rows, groups=1):
    topology = Topology(
        rollout_length=steps,
        group_rows=rows,
        worker_of_group=(0,) * groups,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=(slots,),
    )
    fields = replay_fields(spec, rollout_length=steps)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    arena = Arena.create(layout, poison=True)
    return ReplayStore(arena, spec, topology, config, LIMITS, create=True)


class World:
    """One row of one environment, in NEXT_STEP layout, and all that it ever showed."""

    def __init__(self, random, depth, padding):
        self.random = random
        self.depth = depth
        self.padding = padding
        self.shown = [0]
        self.reset = [True]
        self.steps = []
        self.is_over = False

    def step(self):
        """(action, reward, terminated, truncated, valid) of the next step."""
        action = int(self.random.integers(10))
        if self.is_over:
            self.is_over = False
            outcome = (action, 0.0, False, False, False)
            self.reset.append(True)
        elif self.random.random() < 0.02:  # the environment fails, and is rebuilt
            outcome = (action, 0.0, False, False, False)
            self.reset.append(True)
        else:
            kind = self.random.random()
            terminated, truncated = kind < 0.08, 0.08 <= kind < 0.16
            outcome = (action, float(self.random.normal()), terminated, truncated, True)
            self.is_over = terminated or truncated
            self.reset.append(False)
        self.steps.append(outcome)
        self.shown.append(int(self.random.integers(1 << 30)))
        return outcome

    def stack(self, t):
        """Frames that end at x_t, as the environment shows them."""
        frames = []
        for _ in range(self.depth):
            frames.insert(0, self.shown[t])
            if self.reset[t]:
                frames = [frames[0] if self.padding == "repeat" else 0] * (self.depth - len(frames)) + frames
                break
            if t == 0:
                return None
            t -= 1
        return frames

    def transition(self, t, n):
        """(reward, discount, bootstrap's t, steps looked at) of step t; None while it is not whole."""
        if not self.steps[t][4]:
            return None
        total, discount = 0.0, 1.0
        for k in range(n):
            if t + k >= len(self.steps):
                return None
            _, reward, terminated, truncated, valid = self.steps[t + k]
            if not valid:
                return total, discount, t + k, k + 1
            total += discount * reward
            discount *= DISCOUNT
            if terminated:
                return total, 0.0, t + k + 1, k + 1
            if truncated:
                return total, discount, t + k + 1, k + 1
        return total, discount, t + n, n


def frame_of(value):
    return np.arange(6, dtype=np.int32).reshape(2, 3) + np.int32(value)


class Case(NamedTuple):
    n: int
    depth: int
    padding: str
    steps: int
    rows: int
    slots: int
    groups: int
    remover: str


CASES = [
    Case(1, 1, "zero", steps=4, rows=3, slots=5, groups=1, remover="fifo"),
    Case(3, 1, "zero", steps=4, rows=3, slots=6, groups=2, remover="fifo"),
    Case(5, 4, "zero", steps=5, rows=2, slots=7, groups=2, remover="fifo"),
    Case(2, 3, "repeat", steps=3, rows=1, slots=4, groups=1, remover="fifo"),
    Case(3, 3, "repeat", steps=6, rows=2, slots=9, groups=3, remover="uniform"),
    Case(4, 4, "zero", steps=4, rows=2, slots=8, groups=2, remover="lowest_priority"),
    Case(1, 2, "zero", steps=1, rows=2, slots=6, groups=2, remover="fifo"),
]


def shown_as(world, t):
    """What the environment shows at t, whole stacks."""
    if world.depth == 1:
        return frame_of(world.shown[t])
    return np.stack([np.zeros((2, 3), np.int32) if frame == 0 else frame_of(frame) for frame in world.stack(t)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("seed", range(2))
def test_what_is_live_and_what_is_drawn_are_those_of_a_literal_replay(case, seed):
    random = np.random.default_rng(seed)
    n, depth, steps, rows = case.n, case.depth, case.steps, case.rows
    stack = None if depth == 1 else FrameStack(depth=depth, padding=case.padding)
    spec = env_spec(stack)
    config = ReplayConfig(capacity=1000, min_size=1, n_step=n, remover=case.remover)
    store = make_store(spec, config, slots=case.slots, steps=steps, rows=rows, groups=case.groups)
    sampler = ReplaySampler(store, config, ReturnRule(DISCOUNT), np.array([seed, 0], np.uint64))
    remover = make_remover(config.remover, random, store.priority_of)
    free, completed = list(range(case.slots)), deque()
    worlds = {(g, b): World(random, depth, case.padding) for g in range(case.groups) for b in range(rows)}
    pending = [np.zeros(rows, np.int64) for _ in range(case.groups)]
    # slot -> (group, t of its step 0); None of what was evicted
    holds: dict[int, tuple[int, int]] = {}
    current = {}

    def take():
        if free:
            return free.pop(0)
        slot = remover.choose(completed)
        store.evict(slot)
        del holds[slot]
        return slot

    def show(group, slot, step, t):
        for b in range(rows):
            world = worlds[group, b]
            views = store.shown(group, slot, step)
            views["x"][b] = world.shown[t]
            views["obs"][b] = shown_as(world, t)
            store.arrays["reset"][slot, step, b] = world.reset[t]
        store.keep_newest_frames(group, slot, step)

    def live():
        """Leaf -> (world, t) of every step that may be drawn now."""
        places = {(group, first // steps) for group, first in holds.values()}
        result = {}
        for slot, (group, first) in holds.items():
            for step, b in itertools.product(range(steps), range(rows)):
                world, t = worlds[group, b], first + step
                if t >= len(world.steps) or (whole := world.transition(t, n)) is None:
                    continue
                back = 0
                while back < depth - 1 and not world.reset[t - back]:
                    back += 1
                # x_T stands in the slot itself, so the last step of a slot may bootstrap without the next one.
                if all((group, i // steps) in places for i in range(t - back, t + whole[3])):
                    result[(slot * steps + step) * rows + b] = (world, t)
        return result

    def check():
        expected = live()
        priorities = np.empty(store.tree.capacity, np.float32)
        store.tree.priorities(priorities)
        assert set(np.flatnonzero(priorities)) == set(expected)
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

    for world in worlds.values():
        world.shown[0] = int(random.integers(1, 1 << 30))
    for group in range(case.groups):
        slot = take()
        store.begin(slot, NO_SLOT)
        holds[slot] = (group, 0)
        current[group] = (slot, 0, 0)
        show(group, slot, 0, 0)
    for _ in range(40 * steps):
        group = int(random.integers(case.groups))
        slot, step, t = current[group]
        for b in range(rows):
            action, reward, terminated, truncated, valid = worlds[group, b].step()
            store.arrays["action_discrete"][slot, step, b] = action
            for name, value in zip(
                ("reward", "terminated", "truncated", "valid"), (reward, terminated, truncated, valid), strict=True
            ):
                store.arrays[name][slot, step, b] = value
        show(group, slot, step + 1, t + 1)
        assert store.commit(slot, step, pending[group]) == sum(worlds[group, b].steps[-1][4] for b in range(rows))
        step, t = step + 1, t + 1
        if step == steps:
            full, slot = slot, take()
            completed.append(full)
            store.begin(slot, full)
            holds[slot] = (group, t)
            for name in store.carried:
                store.arrays[name][slot, 0] = store.arrays[name][full, steps]
            step = 0
        current[group] = (slot, step, t)
        if random.random() < 0.4:
            check()
    assert store.tree.verify()
    assert math.isfinite(store.tree.total())

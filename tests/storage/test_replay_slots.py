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
from rollmill.storage.sequence_sampler import SequenceSampler
from rollmill.storage.slots import NO_SLOT, Topology

DISCOUNT = 0.9
LIMITS = RateLimits(update_interval=1.0, min_size=1, error_buffer=1e12, total_steps=10**12)


def env_spec(stack=None, *, has_mask=False):
    frame = (2, 3)
    shape = frame if stack is None else (stack.depth, *frame)
    return EnvSpec(
        name="test",
        observation={
            "obs": ArraySpec(shape=shape, dtype="int32", stack=stack),
            "x": ArraySpec(shape=(), dtype="int64"),
        },
        action=ActionSpec(heads=(CategoricalHead(n=10),), structure="discrete"),
        has_action_mask=has_mask,
    )


def make_store(spec, config, *, slots, steps, rows, groups=1, state_size=0):
    topology = Topology(
        rollout_length=steps,
        group_rows=rows,
        worker_of_group=(0,) * groups,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=(slots,),
    )
    fields = replay_fields(spec, rollout_length=steps, state_size=state_size, stride=config.stride)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    arena = Arena.create(layout, poison=True)
    return ReplayStore(arena, spec, topology, config, LIMITS, state_size=state_size, create=True)


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


class Run:
    """Worlds that are stepped into a replay, as rollout workers and policy workers do it."""

    def __init__(self, case, seed, config, *, state_size=0):
        self.case = case
        self.random = np.random.default_rng(seed)
        stack = None if case.depth == 1 else FrameStack(depth=case.depth, padding=case.padding)
        spec = env_spec(stack, has_mask=state_size > 0)
        shape = {"slots": case.slots, "steps": case.steps, "rows": case.rows, "groups": case.groups}
        self.store = make_store(spec, config, **shape, state_size=state_size)
        self.remover = make_remover(config.remover, self.random, self.store.priority_of)
        self.worlds = {}
        # slot -> (number of the worlds of its rows, t of its step 0); none of what was evicted
        self.holds: dict[int, tuple[int, int]] = {}
        self.begin_processes()

    def begin_processes(self):
        """Worlds and all that a rollout worker knows are new; what the slots hold stays."""
        case, store = self.case, self.store
        self.completed = deque(store.take_over(range(case.slots)))
        self.free = [slot for slot in range(case.slots) if slot not in self.completed]
        for slot in self.free:
            self.holds.pop(slot, None)
        first = len({number for number, _ in self.worlds})
        self.worlds_of = [first + group for group in range(case.groups)]
        self.pending = [np.zeros(case.rows, np.int64) for _ in range(case.groups)]
        self.current = {}
        for number in self.worlds_of:
            for b in range(case.rows):
                world = self.worlds[number, b] = World(self.random, case.depth, case.padding)
                world.shown[0] = int(self.random.integers(1, 1 << 30))
        for group in range(case.groups):
            slot = self.take()
            store.begin(slot, NO_SLOT)
            self.holds[slot] = (self.worlds_of[group], 0)
            self.current[group] = (slot, 0, 0)
            self.show(group, slot, 0, 0)

    def take(self):
        if self.free:
            return self.free.pop(0)
        slot = self.remover.choose(self.completed)
        self.store.evict(slot)
        del self.holds[slot]
        return slot

    def show(self, group, slot, step, t):
        for b in range(self.case.rows):
            world = self.worlds[self.worlds_of[group], b]
            views = self.store.shown(group, slot, step)
            views["x"][b] = world.shown[t]
            views["obs"][b] = shown_as(world, t)
            self.store.arrays["reset"][slot, step, b] = world.reset[t]
            if "action_mask" in self.store.arrays:
                self.store.arrays["action_mask"][slot, step, b] = mask_of(world.shown[t])
        self.store.keep_newest_frames(group, slot, step)

    def act(self, group):
        """The policy worker, asked at x_t: recurrent states, each of them another."""
        slot, step, t = self.current[group]
        if "rnn_state" in self.store.arrays:
            state = np.stack([state_of(self.worlds[self.worlds_of[group], b].shown[t]) for b in range(self.case.rows)])
            self.store.keep_rnn_state(np.array([slot]), np.array([step]), state[None])

    def step(self):
        """One step of any group."""
        store, case = self.store, self.case
        group = int(self.random.integers(case.groups))
        self.act(group)
        slot, step, t = self.current[group]
        for b in range(case.rows):
            action, reward, terminated, truncated, valid = self.worlds[self.worlds_of[group], b].step()
            store.arrays["action_discrete"][slot, step, b] = action
            for name, value in zip(
                ("reward", "terminated", "truncated", "valid"), (reward, terminated, truncated, valid), strict=True
            ):
                store.arrays[name][slot, step, b] = value
        self.show(group, slot, step + 1, t + 1)
        valid = sum(self.worlds[self.worlds_of[group], b].steps[-1][4] for b in range(case.rows))
        assert store.commit(slot, step, self.pending[group]) == valid
        store.limiter.insert(valid, reserved=0)
        step, t = step + 1, t + 1
        if step == case.steps:
            full, slot = slot, self.take()
            self.completed.append(full)
            store.begin(slot, full)
            self.holds[slot] = (self.worlds_of[group], t)
            for name in store.carried:
                store.arrays[name][slot, 0] = store.arrays[name][full, case.steps]
            step = 0
        self.current[group] = (slot, step, t)

    def live(self, needed):
        """Leaf -> (world, t) of what may be drawn now; ``needed(world, t)`` says how many steps, None for never yet."""
        steps, rows = self.case.steps, self.case.rows
        places = {(number, first // steps) for number, first in self.holds.values()}
        result = {}
        for slot, (number, first) in self.holds.items():
            for step, b in itertools.product(range(steps), range(rows)):
                world, t = self.worlds[number, b], first + step
                if t >= len(world.steps) or (ahead := needed(world, t)) is None:
                    continue
                back = 0
                while back < self.case.depth - 1 and not world.reset[t - back]:
                    back += 1
                # x_T stands in the slot itself, so the last step of a slot may bootstrap without the next one.
                if all((number, i // steps) in places for i in range(t - back, t + ahead)):
                    result[(slot * steps + step) * rows + b] = (world, t)
        return result

    def check_leaves(self, expected):
        priorities = np.empty(self.store.tree.capacity, np.float32)
        self.store.tree.priorities(priorities)
        assert set(np.flatnonzero(priorities)) == set(expected)


def mask_of(shown):
    return shown >> np.arange(10) & 1 == 1


def state_of(shown):
    return np.array([shown % 1021, shown % 1019, shown % 1013], np.float32)


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
@pytest.mark.parametrize("seed", range(2))
def test_sequences_are_those_of_a_literal_replay(case, burn_in, length, stride, seed):
    config = sequences_of(case, burn_in, length, stride)
    run = Run(case, seed, config, state_size=3)
    sampler = SequenceSampler(run.store, config, ReturnRule(DISCOUNT), np.array([seed, 0], np.uint64))
    batch, most = sampler.make_batch(32), 0
    for step in range(60 * case.steps):
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


def test_sequences_that_are_written_over_while_they_are_copied_are_drawn_anew(monkeypatch):
    case, *numbers = SEQUENCES[1]
    config = sequences_of(case, *numbers)
    run = Run(case, 3, config, state_size=3)
    sampler = SequenceSampler(run.store, config, ReturnRule(DISCOUNT), np.array([3, 0], np.uint64))
    for _ in range(60 * case.steps):
        run.step()
    gathered = []

    def gather_while_slots_turn(batch):
        gathered.append(len(batch))
        if len(gathered) < 3:
            for _ in range(2 * case.steps):
                run.step()
        type(sampler)._gather(sampler, batch)

    monkeypatch.setattr(sampler, "_gather", gather_while_slots_turn)
    batch = sampler.make_batch(64)
    assert sampler.draw(batch, 0.0)
    assert gathered[0] == 64
    assert 0 < gathered[1] < 64
    assert gathered[2] > 0
    check_sequences(batch, run.live(lambda world, t: 0), config)
    # And a priority of what is gone stays 0.
    assert sampler.update(batch, np.ones(64, np.float32)) == 0
    for _ in range(20 * case.steps):
        run.step()
    assert sampler.update(batch, np.ones(64, np.float32)) == 64
    run.check_leaves(
        run.live(lambda world, t: config.window if t % 3 == 0 and t + config.window <= len(world.steps) else None)
    )


def test_weights_belong_to_the_whole_batch_when_a_part_of_it_is_drawn_again(monkeypatch):
    config = ReplayConfig(capacity=100, min_size=1, priorities="proportional", alpha=1.0)
    run = Run(CASES[0], 5, config)
    for _ in range(100):
        run.step()
    store, beta = run.store, 0.7
    live = np.array(sorted(run.live(lambda world, t: 1)))
    store.tree.assign(live, run.random.uniform(0.01, 10, len(live)).astype(np.float32))
    sampler = ReplaySampler(store, config, ReturnRule(DISCOUNT), np.array([5, 0], np.uint64))
    torn = iter([np.array([2]), np.array([0, 2]), np.array([], np.int64)])
    monkeypatch.setattr(sampler, "_find_torn", lambda batch: next(torn))
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

"""A literal replay that keeps every step of every row in lists, to compare with the replay over slots."""

import itertools
from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec, FrameStack
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.removers import make_remover, pop_evicted
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.slots import NO_SLOT, Topology

DISCOUNT = 0.9
ONE = PlayerIds()
LIMITS = RateLimits(update_interval=1.0, min_size=1, error_buffer=1e12, total_steps=10**12)


def env_spec(stack=None, *, has_mask=False, agents=()):
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
        agents=agents,
    )


def make_store(spec, config, *, slots, steps, rows, groups=1, state_size=0, players=ONE, arenas=None):
    """A store; where ``arenas`` has its arena, the store of another session on it, else ``arenas`` gets it."""
    topology = Topology(
        rollout_length=steps,
        group_rows=rows,
        worker_of_group=(0,) * groups,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=(slots,),
        players=players,
    )
    has_players = players != ONE
    fields = replay_fields(
        spec, rollout_length=steps, state_size=state_size, stride=config.stride, has_players=has_players
    )
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    arenas = [] if arenas is None else arenas
    is_kept = bool(arenas)
    if not is_kept:
        arenas.append(Arena.create(layout, poison=True))
    return ReplayStore(arenas[0], spec, topology, config, LIMITS, state_size=state_size, create=True, is_kept=is_kept)


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

    @property
    def begins(self):
        """Whether an episode begins at the newest observation, so that another player may take over."""
        return self.reset[-1]

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


def shown_as(world, t):
    """What the environment shows at t, whole stacks."""
    if world.depth == 1:
        return frame_of(world.shown[t])
    return np.stack([np.zeros((2, 3), np.int32) if frame == 0 else frame_of(frame) for frame in world.stack(t)])


class Run:
    """Worlds that are stepped into a replay, as rollout workers and policy workers do it.

    With several ``players``, each episode of a row is played by any of them; if they ``stay``, all episodes of a row
    are played by one.
    """

    def __init__(self, case, seed, config, *, state_size=0, make_world=World, agents=(), players=ONE, stay=False):
        self.case = case
        self.make_world = make_world
        self.random = np.random.default_rng(seed)
        stack = None if case.depth == 1 else FrameStack(depth=case.depth, padding=case.padding)
        spec = env_spec(stack, has_mask=state_size > 0, agents=agents)
        shape = {"slots": case.slots, "steps": case.steps, "rows": case.rows, "groups": case.groups}
        self.players, self.stay = players, stay
        self.open = partial(make_store, spec, config, **shape, state_size=state_size, players=players, arenas=[])
        self.store = self.open()
        self.remover = make_remover(config.remover, self.random, self.store.priority_of)
        self.worlds = {}
        # As worlds: who plays at each t.
        self.who = {}
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
                world = self.worlds[number, b] = self.make_world(self.random, case.depth, case.padding)
                world.shown[0] = int(self.random.integers(1, 1 << 30))
                self.who[number, b] = [self.draw_player()]
        for group in range(case.groups):
            slot = self.take()
            store.begin(slot, NO_SLOT)
            self.holds[slot] = (self.worlds_of[group], 0)
            self.current[group] = (slot, 0, 0)
            self.show(group, slot, 0, 0)

    def draw_player(self):
        if self.players == ONE:
            return 0
        return int(self.random.integers(-1, self.players.policies + self.players.guests))

    def take(self):
        if self.free:
            return self.free.pop(0)
        slot = pop_evicted(self.remover, self.completed)
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
            if "acts" in self.store.arrays:
                self.store.arrays["acts"][slot, step, b] = world.acts[t]
            if "policy_id" in self.store.arrays:
                self.store.arrays["policy_id"][slot, step, b] = self.who[self.worlds_of[group], b][t]
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
            world, who = self.worlds[self.worlds_of[group], b], self.who[self.worlds_of[group], b]
            action, reward, terminated, truncated, valid = world.step()
            who.append(self.draw_player() if world.begins and not self.stay else who[-1])
            store.arrays["action_discrete"][slot, step, b] = action
            for name, value in zip(
                ("reward", "terminated", "truncated", "valid"), (reward, terminated, truncated, valid), strict=True
            ):
                store.arrays[name][slot, step, b] = value
        self.show(group, slot, step + 1, t + 1)
        valid = np.zeros(self.players.policies, np.int64)
        for b in range(case.rows):
            place = self.worlds_of[group], b
            player = self.who[place][t]
            if 0 <= player < len(valid):
                valid[player] += self.worlds[place].steps[-1][4]
        counts = np.full_like(valid, -1)
        assert store.commit(slot, step, self.pending[group], counts) == valid.sum()
        np.testing.assert_array_equal(counts, valid)
        for limiter, count in zip(store.limiters, counts.tolist(), strict=True):
            limiter.insert(count, reserved=0)
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

    def player_at(self, leaf):
        """Who played at a step."""
        slot, step, b = np.unravel_index(leaf, (self.case.slots, self.case.steps, self.case.rows))
        number, first = self.holds[int(slot)]
        return self.who[number, int(b)][first + int(step)]

    def check_leaves(self, expected, policy=0):
        tree = self.store.trees[policy]
        priorities = np.empty(tree.capacity, np.float32)
        tree.priorities(priorities)
        assert set(np.flatnonzero(priorities)) == set(expected)


def mask_of(shown):
    return shown >> np.arange(10) & 1 == 1


def state_of(shown):
    return np.array([shown % 1021, shown % 1019, shown % 1013], np.float32)

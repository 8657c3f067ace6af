"""Admission of as many samples of each task, against a literal one that moves single rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rollmill
from rollmill.learning.admission import EqualShares
from rollmill.learning.trajectories import Trajectories
from rollmill.regimes.asynchronous import plan_topology
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slots import POLICY_ID, SlotStore, Topology, add_to_layout, slot_fields

T = 3
SPEC = EnvSpec(
    name="counting",
    observation={"obs": ArraySpec(shape=(1,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete"),
)


def topology_of(*, tasks: int, rows: int, workers: int = 1, each: int = 2, policies: int = 1) -> Topology:
    """Two groups of each task for each policy, spread over the workers, and ``each`` slots for each group."""
    groups = 2 * tasks * policies
    worker_of_group = tuple(group % workers for group in range(groups))
    return Topology(
        rollout_length=T,
        group_rows=rows,
        worker_of_group=worker_of_group,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=tuple(each * worker_of_group.count(worker) for worker in range(workers)),
        players=PlayerIds(policies=policies),
        tasks=tasks,
        slots_per_task_group=each,
    )


def store_of(topology: Topology, policy: int = 0) -> SlotStore:
    fields = slot_fields(SPEC, rollout_length=T, state_size=0, has_players=topology.players.policies > 1)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    store = SlotStore(Arena.create(layout), fields, topology, policy=policy, create=True)
    store.arrays["valid"][...] = True
    store.arrays["episode_length"][...] = 0
    return store


def share(batch: int, task: int, tasks: int, trajectories: int) -> int:
    """The formula in the docstring, literally."""
    after, before = ((k * trajectories + task) / tasks for k in (batch + 1, batch))
    return floor(after) - floor(before)


def shares_of(batch: int, trajectories: int, had: Sequence[int]) -> list[int]:
    """Trajectories of each task in a batch; those that had more than T samples more give to those that had fewer.

    Args:
        batch: Number of the batch.
        trajectories: R.
        had: Samples of each task so far.
    """
    tasks, had = len(had), list(had)
    found = [share(batch, task, tasks, trajectories) for task in range(tasks)]
    most = floor(trajectories / tasks) + ceil(trajectories / tasks)
    while True:
        richest = sorted((-had[task], task) for task in range(tasks) if found[task] > 0)[0][1]
        poorest = sorted((had[task], task) for task in range(tasks) if found[task] < most)[0][1]
        if had[richest] <= had[poorest] + T:
            return found
        for task, change in ((richest, -1), (poorest, 1)):
            found[task] += change
            had[task] += change * T


Row = tuple[int, int, int]
"""The number of a use of a slot, its slot, and a row of it."""


@dataclass
class Literal:
    """Moves single rows; each task has a list."""

    topology: Topology
    trajectories: int
    rows: dict[int, list[Row]] = field(default_factory=dict)
    samples: dict[tuple[int, int], int] = field(default_factory=dict)
    batches: int = 0
    had: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.had = [0] * self.topology.tasks

    def add(self, use: int, slot: int, samples: Sequence[int]) -> None:
        """``samples``: of each row."""
        self.samples |= {(use, row): number for row, number in enumerate(samples)}
        task_of_slot = self.topology.task_of_slot()
        assert task_of_slot is not None
        self.rows.setdefault(int(task_of_slot[slot]), []).extend(
            (use, slot, row) for row in range(self.topology.group_rows)
        )

    def take(self) -> list[tuple[int, Row]] | None:
        """The next batch as (task, row), task after task."""
        shares = shares_of(self.batches, self.trajectories, self.had)
        if any(len(self.rows.get(task, [])) < number for task, number in enumerate(shares)):
            return None
        self.batches += 1
        taken = [(task, self.rows[task].pop(0)) for task, number in enumerate(shares) for _ in range(number)]
        for task, (use, _, row) in taken:
            self.had[task] += self.samples[use, row]
        return taken


class Learner:
    """Fills slots and takes batches, and compares both with the literal admission."""

    def __init__(self, topology: Topology, trajectories: int) -> None:
        self.topology, self.store = topology, store_of(topology)
        self.admission = EqualShares(self.store, trajectories)
        self.literal = Literal(topology, trajectories)
        self.free = list(range(topology.num_slots))
        self.uses = 0
        self.seen: list[Row] = []
        self.added: list[Row] = []
        self.held: list[Trajectories] = []

    def complete(self, slot: int, rate: float = 1.0) -> None:
        """Fill a slot, of whose steps this part is valid."""
        self.free.remove(slot)
        valid = self.store.arrays["valid"][slot]
        valid[...] = np.random.default_rng(self.uses).random(valid.shape) < rate
        ticket = self.uses * 1000 + np.arange(self.topology.group_rows)
        self.store.arrays["reward"][slot] = ticket
        self.store.observation["obs"][slot] = ticket[:, None]
        assert self.store.references[slot] == 0
        self.store.retain(slot)
        self.admission.add(slot)
        self.literal.add(self.uses, slot, np.count_nonzero(valid, axis=0).tolist())
        self.added += [(self.uses, slot, row) for row in range(self.topology.group_rows)]
        self.uses += 1

    def take(self) -> Trajectories | None:
        batch, expected = self.admission.take(), self.literal.take()
        assert (batch is None) == (expected is None)
        if batch is None or expected is None:
            return None
        assert batch.tasks is not None
        assert batch.tasks.tolist() == [task for task, _ in expected]
        tickets = [use * 1000 + row for _, (use, _, row) in expected]
        for step in range(T):
            assert batch.arrays["reward"][step].tolist() == tickets
        observations = self.store.observation["obs"].reshape(-1)
        assert observations[batch.observation_index].tolist() == [tickets] * (T + 1)
        assert set(batch.slots) == {slot for _, (_, slot, _) in expected}
        self.seen += [row for _, row in expected]
        self.held.append(batch)
        return batch

    def release(self, batch: Trajectories) -> None:
        self.held = [each for each in self.held if each is not batch]
        for slot in batch.slots:
            self.store.release(slot)
            if self.store.references[slot] == 0:
                self.free.append(slot)


@st.composite
def setups(draw: Callable[..., int]) -> tuple[Topology, int]:
    tasks, rows = draw(st.integers(2, 4)), draw(st.integers(1, 5))
    topology = topology_of(tasks=tasks, rows=rows, workers=draw(st.integers(1, 3)), each=draw(st.integers(1, 3)))
    return topology, draw(st.integers(1, 12))


@given(setups(), st.data())
@settings(max_examples=100, deadline=None)
def test_batches_are_those_of_a_literal_admission(setup: tuple[Topology, int], data: st.DataObject) -> None:
    topology, trajectories = setup
    learner = Learner(topology, trajectories)
    rates = data.draw(st.lists(st.sampled_from([0.0, 0.5, 0.8, 1.0]), min_size=topology.tasks, max_size=topology.tasks))
    for _ in range(data.draw(st.integers(0, 60))):
        if learner.free:
            slot = data.draw(st.sampled_from(learner.free))
            learner.complete(slot, rates[task_of(learner)[slot]])
        if data.draw(st.booleans()):
            while learner.take() is not None:
                pass
        if learner.held and data.draw(st.booleans()):
            learner.release(learner.held[data.draw(st.integers(0, len(learner.held) - 1))])
    while learner.take() is not None:
        pass
    while learner.held:
        learner.release(learner.held[0])
    # Every row came once, or waits; slots are held exactly where rows wait.
    waiting = [row for of_task in learner.literal.rows.values() for row in of_task]
    assert sorted(learner.seen + waiting) == sorted(learner.added)
    expected = [len({use for use, of_slot, _ in waiting if of_slot == slot}) for slot in range(topology.num_slots)]
    assert learner.store.references.tolist() == expected


@pytest.mark.parametrize("trajectories", range(1, 14))
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_tasks_take_turns_with_the_remainder(tasks: int, trajectories: int) -> None:
    learner = Learner(topology_of(tasks=tasks, rows=4, each=4), trajectories)
    counts = np.zeros((3 * tasks, tasks), np.int64)
    for index in range(len(counts)):
        while (batch := learner.take()) is None:
            learner.complete(learner.free[0])
        assert batch.num_trajectories == trajectories
        assert batch.tasks is not None
        counts[index] = np.bincount(batch.tasks, minlength=tasks)
        learner.release(batch)
        # First come, first served, so that no task runs out of slots.
        learner.free.sort(key=lambda slot: (len(learner.literal.rows.get(int(task_of(learner)[slot]), [])), slot))
    assert counts.tolist() == [
        [share(k, task, tasks, trajectories) for task in range(tasks)] for k in range(len(counts))
    ]
    each, rest = divmod(trajectories, tasks)
    assert set(counts.ravel().tolist()) <= {each, each + (rest > 0)}
    # After so many batches all tasks are even.
    assert counts.reshape(3, tasks, tasks).sum(axis=1).tolist() == [[trajectories] * tasks] * 3


def task_of(learner: Learner) -> NDArray[np.int64]:
    found = learner.topology.task_of_slot()
    assert found is not None
    return found


def test_nothing_is_taken_while_one_task_lacks_rows() -> None:
    learner = Learner(topology_of(tasks=2, rows=2, each=3), 4)
    first, second = (np.flatnonzero(task_of(learner) == task).tolist() for task in (0, 1))
    for slot in first:
        learner.complete(slot)
        assert learner.take() is None
    assert learner.store.references[first].tolist() == [1] * 6, "a task that waits keeps its slots whole"
    learner.complete(second[1])
    batch = learner.take()
    assert batch is not None
    assert batch.slots == (first[0], second[1])
    assert learner.take() is None


def test_a_slot_whose_rows_go_to_several_batches_is_released_with_the_last_one() -> None:
    learner = Learner(topology_of(tasks=2, rows=3), 2)
    first, second = (np.flatnonzero(task_of(learner) == task).tolist() for task in (0, 1))
    learner.complete(first[0])
    learner.complete(second[0])
    batches = [learner.take() for _ in range(3)]
    assert learner.take() is None
    assert learner.store.references[[first[0], second[0]]].tolist() == [3, 3]
    for left, batch in zip((2, 1, 0), batches, strict=True):
        assert batch is not None
        learner.release(batch)
        assert learner.store.references[first[0]] == left
    assert learner.store.generation[[first[0], second[0]]].tolist() == [1, 1]


@pytest.mark.parametrize("policy", [0, 1])
def test_with_several_policies_a_batch_has_as_many_trajectories_as_with_one(policy: int) -> None:
    # Episodes of one step: with rows counted by their samples, the policy's slots would not be enough for a batch.
    topology = topology_of(tasks=2, rows=4, each=3, policies=2)
    store = store_of(topology, policy)
    store.arrays["valid"][:, ::2] = False
    store.arrays[POLICY_ID][...] = policy
    admission, batches = EqualShares(store, 4), 0
    for slot in range(topology.num_slots):
        store.retain(slot)
        admission.add(slot)
        while (batch := admission.take()) is not None:
            batches += 1
            assert batch.num_trajectories == 4
            assert batch.tasks is not None
            assert np.bincount(batch.tasks).tolist() == [2, 2]
    assert batches == topology.num_slots


def test_a_task_whose_episodes_are_short_gets_more_trajectories() -> None:
    topology = topology_of(tasks=3, rows=4, each=60)
    store, length = store_of(topology), topology.rollout_length
    tasks = topology.task_of_slot()
    assert tasks is not None
    # Every second step of the first task is a final observation.
    store.arrays["valid"][tasks == 0, ::2] = False
    admission, samples = EqualShares(store, 6), np.zeros(3, np.int64)
    batches = 0
    for slot in np.random.default_rng(0).permutation(topology.num_slots).tolist():
        store.retain(slot)
        admission.add(slot)
        while (batch := admission.take()) is not None:
            batches += 1
            assert batch.tasks is not None
            assert batch.num_trajectories == 6
            np.add.at(samples, batch.tasks, np.count_nonzero(batch.arrays["valid"], axis=0))
            # The difference before the batch, and what the batch itself can add to it.
            assert samples.max() - samples.min() <= 3 * length
    assert batches > 60
    np.testing.assert_allclose(samples / samples.sum(), 1 / 3, rtol=0.02)


@pytest.mark.parametrize("rates", [(0.5, 1.0), (1.0, 0.6), (0.7, 0.7)])
@pytest.mark.parametrize("trajectories", [5, 8])
def test_tasks_of_short_episodes_have_as_many_samples(trajectories: int, rates: tuple[float, float]) -> None:
    learner = Learner(topology_of(tasks=2, rows=4, each=8), trajectories)
    most = trajectories // 2 + -(-trajectories // 2)
    for _ in range(100):
        while (batch := learner.take()) is None:
            task = min((0, 1), key=lambda task: len(learner.literal.rows.get(task, [])))
            slot = next(slot for slot in learner.free if task_of(learner)[slot] == task)
            learner.complete(slot, rates[task])
        assert batch.tasks is not None
        assert batch.num_trajectories == trajectories
        assert np.bincount(batch.tasks, minlength=2).max() <= most
        learner.release(batch)
    first, second = learner.literal.had
    assert abs(first - second) <= 2 * T * trajectories
    assert first + second > 100 * trajectories * T * 0.5


def settled(envs_per_group: int, groups: int, trajectories: int) -> Topology:
    """The slots of a run of two tasks, each with so many groups."""
    sizes = {
        "num_envs": 2 * groups * envs_per_group,
        "envs_per_group": envs_per_group,
        "rollout_length": T,
        "learner.batch_size": trajectories * T,
        "learner.minibatches": 1,
        "rollout.num_workers": 1,
    }
    config = rollmill.make_config("gym/CartPole-v1,gym/Acrobot-v1", sizes).resolved()
    return plan_topology(config, Probed(replace(SPEC, tasks=(SPEC, SPEC)), (NetworkSizes(0, 64, 8),)))


@pytest.mark.parametrize("rates", [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("trajectories", [3, 4, 8, 16])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("envs_per_group", [2, 4, 8])
def test_a_run_has_slots_enough_for_any_share_that_it_waits_for(
    envs_per_group: int, groups: int, trajectories: int, rates: tuple[float, float]
) -> None:
    learner = Learner(settled(envs_per_group, groups, trajectories), trajectories)
    tasks = task_of(learner)
    for number in range(100):
        while (batch := learner.take()) is None:
            free = [[slot for slot in learner.free if tasks[slot] == task] for task in (0, 1)]
            # A group keeps the slot that it fills, and completes it with the first action in the next one.
            able = [task for task in (0, 1) if len(free[task]) > groups]
            assert able, f"all groups wait for slots, and batch {number} for rows"
            for task in able:
                learner.complete(free[task][0], rates[task])
        learner.release(batch)

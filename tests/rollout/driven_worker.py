"""A rollout worker in a thread, with real slots, rings and environments; the test plays policy worker and learner."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.views import OutcomeView, SavableGroup, own_views
from rollmill.roles import ROLLOUT_WORKER
from rollmill.rollout.group_builder import GroupBuilder
from rollmill.rollout.slot_policies import SlotPolicy
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext, StopFlag
from rollmill.runtime.ledger import Ledger, LedgerBoard, ProcessAccount
from rollmill.specs import EnvSpec
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, replay_fields
from rollmill.storage.replay import add_to_layout as add_replay_to_layout
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, Topology, add_to_layout, encode, slot_fields

ROWS, STEPS = 2, 3
# Episodes are shorter than two slots, so that resets fall into every place of a slot.
ENV = EnvConfig(name="gym/CartPole-v1", max_episode_steps=5)
UNLIMITED = RateLimits(update_interval=1.0, min_size=1, error_buffer=1e12, total_steps=10**12)


@functools.cache
def spec_of() -> EnvSpec:
    return probe(ENV)


def make_environments(group: int, iteration: int = 0) -> SavableGroup:
    first = 100 * iteration + 10 * group
    return make_group(ENV, ROWS, [first + row for row in range(ROWS)])


def topology_of(*, groups: int, slots: int, slots_per_group: int = 0) -> Topology:
    return Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,) * groups,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=(slots,),
        slots_per_group=slots_per_group,
    )


def slot_store(topology: Topology, *, state_size: int = 0, spec: EnvSpec | None = None) -> SlotStore:
    fields = slot_fields(spec or spec_of(), rollout_length=STEPS, state_size=state_size)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    return SlotStore(Arena.create(layout, poison=True), fields, topology, create=True)


def replay_arena(topology: Topology, config: ReplayConfig, spec: EnvSpec) -> Arena:
    fields = replay_fields(spec, rollout_length=STEPS)
    layout = ArenaLayout()
    add_replay_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    return Arena.create(layout, poison=True)


def replay_store(
    topology: Topology, *, limits: RateLimits = UNLIMITED, spec: EnvSpec | None = None, n_step: int = 1
) -> ReplayStore:
    config = ReplayConfig(capacity=1000, min_size=1, n_step=n_step)
    spec = spec or spec_of()
    return ReplayStore(replay_arena(topology, config, spec), spec, topology, config, limits, create=True)


def action_of(group: int, iteration: int, step: int) -> NDArray[np.int32]:
    """The action that the test gives at this place; int32 ``[ROWS, 1]``."""
    return (np.arange(ROWS, dtype=np.int32)[:, None] * 3 + 7 * group + 5 * iteration + step * step) // 2 % 2


def value_of(group: int, iteration: int, step: int) -> float:
    """The value that the test gives at this place; all are different."""
    return 1000.0 * group + 10.0 * iteration + step


def context_of(ledger: Ledger, send: Callable[[object], None] = print) -> ChildContext:
    """The context of a rollout worker in this process."""
    layout = ArenaLayout()
    layout.add(StopFlag.FIELD, (1,), "int64", poisoned=False)
    return ChildContext(
        name="rollout worker 0",
        stop=StopFlag(Arena.create(layout)),
        send=send,
        ledger=ledger,
        log=logging.getLogger("rollmill.rollout worker 0"),
    )


class SteppedAlone:
    """A group that is stepped without a worker, by the same actions: what its slots must hold."""

    def __init__(self, group: int, *, iteration: int = 0) -> None:
        self.group, self.iteration = group, iteration
        self._build()

    def _build(self) -> None:
        self.environments = make_environments(self.group, self.iteration)
        self.into, self.outcome = own_views(spec_of(), ROWS)
        self.environments.reset(self.into)

    def next_slot(self, *, rebuild: bool = False) -> dict[str, NDArray[Any]]:
        """The arrays of the group's next slot; ``rebuild``: its environments are rebuilt, as after a checkpoint."""
        if rebuild:
            self._build()
        seen, caused = [self._seen()], []
        for step in range(STEPS):
            action = action_of(self.group, self.iteration, step)
            self.environments.step(action, None, self.into, self.outcome)
            seen.append(self._seen())
            caused.append({name: getattr(self.outcome, name).copy() for name in OutcomeView._fields[:6]})
        self.iteration += 1
        return {name: np.stack([at[name] for at in steps]) for steps in (seen, caused) for name in steps[0]}

    def _seen(self) -> dict[str, NDArray[Any]]:
        observation = {f"observation/{name}": array.copy() for name, array in self.into.observation.items()}
        return {**observation, "reset": self.into.reset.copy()}


class Driver:
    """The other side of a worker's rings."""

    def __init__(self, store: SlotStore, context: ChildContext, account: Callable[[], ProcessAccount]) -> None:
        self.store = store
        self.context = context
        self.account = account
        self.unanswered: list[int] = []
        self.sent: list[object] = []
        self._messages = np.empty(store.topology.num_groups + store.topology.num_slots, np.int64)
        self.error: BaseException | None = None

    def wait_until(self, is_so: Callable[[], bool], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.001)

    def requests(self, at_least: int = 1) -> list[int]:
        """The groups whose requests are unanswered, in the order in which they came."""

        def has_come() -> bool:
            count = self.store.requests[0].get_many(self._messages, 0.01)
            self.unanswered += self._messages[:count].tolist()
            return len(self.unanswered) >= at_least

        self.wait_until(has_come)
        return self.unanswered

    def answer(self, *groups: int) -> None:
        """Writes actions and values as a policy worker does, and tells the rollout worker."""
        for group in groups:
            self.unanswered.remove(group)
            slot, step, previous, iteration = self.stands_at(group)
            arrays, value = self.store.arrays, value_of(group, iteration, step)
            if "value" in arrays:
                arrays["value"][slot, step] = value
                if previous != NO_SLOT:
                    arrays["value"][previous, STEPS] = value
            if step < STEPS:
                arrays["action_discrete"][slot, step] = action_of(group, iteration, step)
            elif self.store.group_rnn_state is not None:
                self.store.group_rnn_state[group] = value
            assert self.store.inboxes[0].put(0, encode(ACTIONS, group))

    def play(self, group: int, answers: int) -> None:
        """Answers a group's next requests."""
        for _ in range(answers):
            self.await_request(group)
            self.answer(group)

    def await_request(self, group: int) -> tuple[int, int, int, int]:
        """Waits for the group's next request; returns its position as :meth:`stands_at` does."""
        self.wait_until(lambda: group in self.requests(0))
        return self.stands_at(group)

    def stands_at(self, group: int) -> tuple[int, int, int, int]:
        """(slot, step, previous slot, iteration) of the group's latest request."""
        store = self.store
        tables = (store.group_slot, store.group_step, store.group_previous_slot, store.group_iteration)
        slot, step, previous, iteration = (int(table[group]) for table in tables)
        return slot, step, previous, iteration

    def completed(self, at_least: int = 0) -> list[int]:
        """What the ring of completed slots (of a replay: of episodes) holds, taken out."""
        taken: list[int] = []

        def has_come() -> bool:
            count = self.store.completed[0].get_many(self._messages, 0.0)
            taken.extend(self._messages[:count].tolist())
            return len(taken) >= at_least

        self.wait_until(has_come)
        return taken

    def wait_parked(self, *groups: int) -> None:
        self.wait_until(lambda: all(self.store.group_is_parked[group] for group in groups))

    def wait_phase(self, phase: str) -> None:
        self.wait_until(lambda: self.account().current_phase == phase)

    def stop(self) -> None:
        self.context.stop.set()
        self.store.inboxes[0].wake()


@contextmanager
def driving(
    store: SlotStore,
    slots: Callable[[GroupBuilder], SlotPolicy],
    *,
    make: Callable[[int, int], SavableGroup] = make_environments,
    random_steps: int = 0,
    first_iteration: int = 0,
) -> Iterator[Driver]:
    """Runs worker 0 of the store until the end of the block; its exception comes out there."""
    board = LedgerBoard(1)
    seat = board.seat("rollout worker 0", ROLLOUT_WORKER, os.getpid())
    sent: list[object] = []
    context = context_of(seat.open(), sent.append)
    builder = GroupBuilder(
        context=context,
        make_environments=make,
        action=spec_of().action,
        box="clip",
        random_steps=lambda group: random_steps,
        random=lambda group, iteration: np.random.default_rng([group, iteration]),
    )
    worker = RolloutWorker(
        context=context,
        store=store,
        worker=0,
        builder=builder,
        slots=slots(builder),
        first_iteration=first_iteration,
    )
    driver = Driver(store, context, lambda: board.account(seat))
    driver.sent = sent

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            driver.error = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield driver
    finally:
        driver.stop()
        thread.join(20.0)
        assert not thread.is_alive()
        board.close()
    if driver.error is not None:
        raise driver.error


def assert_holds(store: SlotStore, slot: int, expected: dict[str, NDArray[Any]]) -> None:
    """That the slot holds these arrays; a replay's slots lack some of them."""
    for name in expected.keys() & store.arrays.keys():
        np.testing.assert_array_equal(store.arrays[name][slot], expected[name], err_msg=name)

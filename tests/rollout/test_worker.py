"""The rollout worker's loop: its start, its end, and environments that fail."""

from __future__ import annotations

import logging
import threading
from typing import Literal

import numpy as np
import pytest
from tests.rollout.driven_worker import ROWS, STEPS, driving, make_environments, slot_store, spec_of, topology_of

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import EnvironmentFailure
from rollmill.envs.factory import make_group, probe
from rollmill.envs.info_metrics import EnvMetrics
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import SavableGroup, own_views
from rollmill.rollout.slot_policies import PooledSlots


def walk(*, fault: str, on_failure: Literal["stop", "restart"]) -> EnvConfig:
    kwargs = {"fault": fault, "after": 4}
    return EnvConfig(name="test/walk", imports=("tests.regimes.faulty_envs",), kwargs=kwargs, on_failure=on_failure)


FAILING = walk(fault="step", on_failure="stop")


@pytest.mark.parametrize("random_steps", [0, 1, 7])
def test_the_first_observation_follows_the_random_actions(random_steps: int) -> None:
    store = slot_store(topology_of(groups=2, slots=4))
    with driving(store, lambda _: PooledSlots(store, 0), random_steps=random_steps) as driver:
        driver.requests(2)
        for group in (0, 1):
            environments, (into, outcome) = make_environments(group), own_views(spec_of(), ROWS)
            environments.reset(into)
            random = np.random.default_rng([group, 0])
            for _ in range(random_steps):
                environments.step(*random_actions(spec_of().action, None, ROWS, random), into, outcome)
            slot = driver.stands_at(group)[0]
            np.testing.assert_array_equal(store.observation["obs"][slot, 0], into.observation["obs"])
            np.testing.assert_array_equal(store.arrays["reset"][slot, 0], into.reset)


def test_valid_steps_are_counted_and_time_is_accounted_for() -> None:
    store = slot_store(topology_of(groups=1, slots=3))
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        driver.play(0, 2 * STEPS + 1)
        driver.await_request(0)
        valid = sum(int(store.arrays["valid"][slot].sum()) for slot in driver.completed(2))
        last = driver.stands_at(0)[0]
        valid += int(store.arrays["valid"][last, 0].sum())
        driver.wait_phase("waiting for actions")
        account = driver.account()
        assert account.counters["agent steps"] == valid
        assert min(account.phases[name] for name in ("building environments", "simulating", "bookkeeping")) > 0.0


def test_the_stop_flag_ends_the_wait_and_closes_the_environments() -> None:
    closed = []

    def make(group: int, iteration: int) -> SavableGroup:
        environments = make_environments(group)
        environments.close = lambda: closed.append(group)  # type: ignore[method-assign]
        return environments

    store = slot_store(topology_of(groups=2, slots=4))
    with driving(store, lambda _: PooledSlots(store, 0), make=make) as driver:
        driver.requests(2)
        assert not closed
    assert closed == [0, 1]


def test_metrics_of_environments_are_sent_now_and_then_and_at_the_end() -> None:
    store = slot_store(topology_of(groups=2, slots=6))
    environments: dict[int, SavableGroup] = {}

    def make(group: int, iteration: int) -> SavableGroup:
        environments[group] = make_environments(group)
        return environments[group]

    def give(group: int, **numbers: object) -> None:
        environments[group].metrics.add(numbers, 0)

    with driving(store, lambda _: PooledSlots(store, 0), make=make) as driver:
        driver.requests(2)
        give(0, speed=2.0, text="x")
        give(1, speed=4.0)
        driver.wait_until(lambda: bool(driver.sent))
        give(1, speed=7.0)
    first, last = driver.sent
    assert isinstance(first, EnvMetrics)
    assert first.sums == {"speed": (6.0, 2)}
    assert set(first.refused) == {"text"}
    assert last == EnvMetrics({"speed": (7.0, 1)}, {}, {})


def test_environments_without_metrics_send_nothing() -> None:
    store = slot_store(topology_of(groups=1, slots=3))
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        driver.play(0, 2 * STEPS + 1)
    assert not driver.sent


def test_no_more_groups_are_built_once_the_stop_flag_is_set() -> None:
    built, is_stopped = [], threading.Event()

    def make(group: int, iteration: int) -> SavableGroup:
        built.append(group)
        assert is_stopped.wait(20.0)
        return make_environments(group)

    store = slot_store(topology_of(groups=3, slots=6))
    with driving(store, lambda _: PooledSlots(store, 0), make=make) as driver:
        driver.wait_until(lambda: bool(built))
        driver.stop()
        is_stopped.set()
    assert built == [0]


def test_repaired_failures_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    env = walk(fault="step", on_failure="restart")
    store = slot_store(topology_of(groups=1, slots=4), spec=probe(env))
    with (
        caplog.at_level(logging.WARNING),
        driving(store, lambda _: PooledSlots(store, 0), make=lambda *_: make_group(env, ROWS, [1, 2])) as driver,
    ):
        driver.play(0, 2 * STEPS)
        driver.wait_until(lambda: driver.account().counters["environment rebuilds"] == ROWS)
    assert sum("the step went wrong" in message for message in caplog.messages) == ROWS


def test_an_environment_that_fails_ends_the_worker_with_its_exception_and_is_left_open() -> None:
    closed = []

    def make(group: int, iteration: int) -> SavableGroup:
        environments = make_group(FAILING, ROWS, [1, 2])
        environments.close = lambda: closed.append(group)  # type: ignore[method-assign]
        return environments

    store = slot_store(topology_of(groups=1, slots=2), spec=probe(FAILING))
    with (
        pytest.raises(EnvironmentFailure, match="the step went wrong"),
        driving(store, lambda _: PooledSlots(store, 0), make=make) as driver,
    ):
        driver.play(0, 2 * STEPS)
    assert not closed


def test_an_environment_that_cannot_be_built_ends_the_worker() -> None:
    env = walk(fault="constructor", on_failure="stop")
    store = slot_store(topology_of(groups=1, slots=2), spec=probe(FAILING))
    with (
        pytest.raises(EnvironmentFailure, match="the constructor went wrong"),
        driving(store, lambda _: PooledSlots(store, 0), make=lambda *_: make_group(env, ROWS, [1, 2])) as driver,
    ):
        driver.requests()

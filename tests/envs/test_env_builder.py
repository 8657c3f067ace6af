"""Building and rebuilding of environments within a budget."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.envs.env_builder import EnvBuilder, seed_of_rebuild
from rollmill.envs.errors import EnvironmentFailure, InvalidReward
from rollmill.envs.failures import RestartBudget


class Env:
    """Counts those that are open."""

    open = 0

    def __init__(self) -> None:
        Env.open += 1

    def close(self) -> None:
        Env.open -= 1


def builder(make: Any, **options: Any) -> EnvBuilder:
    Env.open = 0
    return EnvBuilder(make, **{"name": "test", "first_index": 4, "on_failure": "restart", "budget": None, **options})


def test_a_rebuild_replaces_the_environment_until_its_start_succeeds() -> None:
    building = builder(Env, budget=RestartBudget(3))
    env, starts = building.build(0), []

    def start(env: Any) -> None:
        starts.append(env)
        if len(starts) < 3:
            raise ValueError("not yet")

    new = building.rebuild(env, 0, "step", 9, RuntimeError("it broke"), start)
    assert new is starts[-1]
    assert Env.open == 1
    assert len(building.failures) == 3
    assert "RuntimeError: it broke" in building.failures[0]
    assert "ValueError: not yet" in building.failures[1]
    with pytest.raises(EnvironmentFailure, match=r"environment 6 of test raised .* \(3 of 3 rebuilds\)"):
        building.rebuild(new, 2, "step", 10, RuntimeError("it broke"), start)


def test_what_was_built_in_vain_is_closed() -> None:
    def start(env: Any) -> None:
        raise ValueError("never") if len(building.failures) < 3 else InvalidReward("wrong")

    for budget, error in ((2, EnvironmentFailure), (3, InvalidReward)):
        building = builder(Env, budget=RestartBudget(budget))
        env = building.build(0)
        with pytest.raises(error):
            building.rebuild(env, 0, "step", 9, RuntimeError("it broke"), start)
        assert Env.open == 0


def test_a_failing_close_is_no_rebuild(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Env):
        def close(self) -> None:
            raise BrokenPipeError("gone")

    building = builder(Stubborn)
    building.close([building.build(0)])
    assert "BrokenPipeError: gone" in caplog.text
    assert building.failures == []


def test_without_a_budget_the_first_failure_is_the_last() -> None:
    def make() -> Any:
        raise RuntimeError("no display")

    with pytest.raises(EnvironmentFailure, match="environment 5 of test raised RuntimeError in its constructor"):
        builder(make, on_failure="stop").build(1)
    with pytest.raises(EnvironmentFailure, match=r"\(10 of 10 rebuilds\)"):
        builder(make).build(1)


def test_a_rebuilt_environment_has_a_seed_of_its_own() -> None:
    seeds = {seed_of_rebuild(seed, rebuilds) for seed in range(10) for rebuilds in range(1, 5)}
    assert len(seeds) == 40
    assert max(seeds) < 2**31
    assert not seeds & set(range(10))

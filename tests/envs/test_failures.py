from __future__ import annotations

import traceback

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rollmill.envs.errors import EnvironmentFailure, NonFiniteObservation
from rollmill.envs.failures import RestartBudget, failure
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup


class FaultError(Exception):
    pass


def failing(base, where, at, times=1, error=FaultError):
    """Create a class whose ``at``-th call of ``where``, over all instances, fails ``times`` times in a row."""

    class Failing(base):
        calls = 0
        built = 0
        closed = 0

        def __init__(self):
            type(self).built += 1
            if where == "constructor":
                self.fail()
            super().__init__()

        def fail(self):
            type(self).calls += 1
            if at <= type(self).calls < at + times:
                raise error(f"deliberate, call {type(self).calls}")

        def reset(self, *, seed=None, options=None):
            if where == "reset":
                self.fail()
            return super().reset(seed=seed, options=options)

        def step(self, action):
            if where == "step":
                self.fail()
            return super().step(action)

        def close(self):
            type(self).closed += 1

    return Failing


def run(group, env_class, harness, steps=20):
    specs, action = observation_specs(env_class.observation_space), action_spec(env_class.action_space)
    return harness.run(group, specs, action, steps)


@pytest.mark.parametrize(("where", "at"), [("constructor", 2), ("reset", 3), ("reset", 6), ("step", 17)])
@pytest.mark.parametrize("kind", ["python", "vector"])
def test_stop_reports_the_call_and_the_environments_traceback(kind, where, at, harness):
    env_class = failing(harness.CountingEnv, where, at)

    def play():
        if kind == "python":
            group = PythonGroup(env_class, num_envs=4, seeds=range(4), first_index=8, name="grid")
        else:
            group = VectorGroup(lambda s: SyncVectorEnv([env_class] * 4), seeds=range(4), first_index=8, name="grid")
        run(group, env_class, harness)

    with pytest.raises(
        EnvironmentFailure, match=f"of grid raised FaultError in its (step|{where}).*deliberate"
    ) as caught:
        play()
    assert isinstance(caught.value.__cause__, FaultError)
    assert "self.fail()" in "".join(traceback.format_exception(caught.value))
    assert "environment" in str(caught.value)
    assert any(str(index) in str(caught.value) for index in range(8, 12))


def test_a_failing_constructor_closes_what_was_built(harness):
    env_class = failing(harness.CountingEnv, "constructor", 3)
    with pytest.raises(EnvironmentFailure):
        PythonGroup(env_class, num_envs=4, seeds=range(4))
    assert env_class.closed == 2


@pytest.mark.parametrize("error", [FaultError, SystemExit])
@pytest.mark.parametrize(("where", "at"), [("step", 30), ("reset", 9), ("constructor", 2)])
def test_restart_masks_the_step_and_continues(where, at, error, harness):
    env_class = failing(harness.CountingEnv, where, at, error=error)
    group = PythonGroup(env_class, num_envs=4, seeds=range(4), on_failure="restart", budget=RestartBudget(3))
    data = run(group, env_class, harness, steps=40)
    assert len(group.failures) == 1
    assert "deliberate" in group.failures[0]
    assert env_class.built == 5
    x = data.observation["obs"].astype(np.int64)
    for t, row in np.argwhere(data.valid):
        assert tuple(x[t + 1, row][1:]) == (x[t, row, 1], x[t, row, 2] + 1)
    # A first observation follows every masked step, after an end and after a failure.
    np.testing.assert_array_equal(data.reset[1:], ~data.valid)
    assert not x[1:][data.reset[1:]][:, 2].any()
    ended = data.terminated | data.truncated
    failures = ~data.valid[1:] & ~ended[:-1]
    assert failures.sum() == (1 if where == "step" else 0)
    # The failed episode is not counted, and the reported ones are complete.
    for t, row in np.argwhere(ended):
        assert data.episode_length[t, row] == x[t + 1, row, 2]
    group.close()
    assert env_class.closed == (5 if where != "constructor" else 4)


def test_a_rebuilt_environment_gets_another_seed(harness):
    env_class = failing(harness.CountingEnv, "step", 1, times=2)
    group = PythonGroup(env_class, num_envs=1, seeds=[5], on_failure="restart", budget=RestartBudget(2))
    data = run(group, env_class, harness, steps=2)
    assert not data.valid.any()
    assert data.reset.all()
    seeds = data.observation["obs"][:, 0, 0]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("kind", ["python", "vector"])
def test_a_spent_budget_stops(kind, harness):
    env_class = failing(harness.CountingEnv, "step", 10, times=1000)
    budget = RestartBudget(2)
    if kind == "python":
        group = PythonGroup(env_class, num_envs=2, seeds=[0, 1], on_failure="restart", budget=budget)
    else:
        group = VectorGroup(lambda s: SyncVectorEnv([env_class] * 2), seeds=[0, 1], on_failure="restart", budget=budget)
    with pytest.raises(EnvironmentFailure, match=r"restart_budget is spent \(2 of 2 rebuilds\)"):
        run(group, env_class, harness)
    assert len(group.failures) == 2


def test_rebuild_replaces_the_whole_vector(harness):
    env_class = failing(harness.CountingEnv, "step", 30)
    group = VectorGroup(lambda s: SyncVectorEnv([env_class] * 4), seeds=range(4), on_failure="restart")
    data = run(group, env_class, harness, steps=40)
    assert env_class.built == 8
    ended = data.terminated | data.truncated
    failures = ~data.valid[1:] & ~ended[:-1]
    (when,) = np.flatnonzero(failures.any(axis=1))
    assert not data.valid[when + 1].any()
    assert data.reset[when + 2].all()
    assert not data.reward[when + 1].any()
    np.testing.assert_array_equal(data.observation["obs"][when + 2][:, 2], 0)


@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("kind", ["python", "vector"])
@pytest.mark.parametrize("check", [True, False])
def test_non_finite_numbers_stop_the_run_unless_allowed(what, kind, check, harness):
    class Broken(harness.CountingEnv):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            if self.seed == 1 and self.episode == 1:
                if what == "observation":
                    observation[2] = np.inf
                else:
                    reward = np.nan
            return observation, reward, terminated, truncated, info

    options = {"first_index": 6, "name": "grid", "check_finite": check}
    if kind == "python":
        group = PythonGroup(Broken, num_envs=3, seeds=range(3), **options)
    else:
        group = VectorGroup(lambda s: SyncVectorEnv([Broken] * 3), seeds=range(3), **options)
    if check:
        with pytest.raises(NonFiniteObservation, match=rf"environment 7 of grid .*{what}.*group step"):
            run(group, Broken, harness)
    else:
        data = run(group, Broken, harness)
        assert not np.isfinite(data.observation["obs"] if what == "observation" else data.reward).all()


def test_seeds_and_rows_must_agree(harness):
    with pytest.raises(ValueError, match="2 seeds were given for 3 environments"):
        PythonGroup(harness.CountingEnv, num_envs=3, seeds=[1, 2])


def test_all_environments_are_closed_if_one_close_raises(harness, caplog):
    class Sticky(harness.CountingEnv):
        closed = 0

        def close(self):
            type(self).closed += 1
            raise FaultError("cannot close")

    group = PythonGroup(Sticky, num_envs=3, seeds=range(3))
    group.close()
    group.close()
    assert Sticky.closed == 3
    assert (len(caplog.records), group.failures) == (3, [])


def test_wrong_arguments_of_a_constructor_are_told_from_other_failures():
    def said(where, error, step=0, budget=None):
        return str(failure("my/env", 0, where, step, error, budget))

    wrong = TypeError("__init__() got an unexpected keyword argument 'sise'")
    assert said("constructor", wrong).endswith("env.kwargs.NAME are arguments of its constructor, and the only ones")
    old = TypeError("Old.reset() got an unexpected keyword argument 'seed'")
    assert said("reset", old).endswith("Gymnasium 1.x calls reset(seed=..., options=...)")
    assert "on_failure=restart" in said("constructor", ValueError("no display"))
    assert "on_failure=restart" in said("step", wrong, 3)
    assert "env.restart_budget is spent (0 of 0" in said("constructor", wrong, 0, RestartBudget(0))

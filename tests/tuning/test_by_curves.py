"""Settings that are chosen by given curves: the solution of the equation, which a run accepts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.straight_curves import CURVES, line

from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.registry import register_algorithm
from rollmill.api import make_config
from rollmill.regimes.replay import plan_topology
from rollmill.regimes.setup import Probed
from rollmill.regimes.starting import probe
from rollmill.runtime.supervisor import Supervisor
from rollmill.tuning.by_curves import tune_by_curves
from rollmill.tuning.curves import Curve, CurveError, Curves
from rollmill.tuning.explain import curves_of
from rollmill.tuning.model import StageCosts, predict
from rollmill.tuning.profile import workload_of
from rollmill.tuning.result import Tuning
from rollmill.tuning.search import search
from rollmill.tuning.settings import allocation_of, read_settings, space_of
from rollmill.tuning.tune import tune

pytestmark = pytest.mark.usefixtures("sixteen_cores")


@pytest.mark.parametrize("algo", [None, "dqn"])
def test_given_curves_are_solved_and_nothing_is_started(
    algo: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("rollmill.runtime.supervisor.Supervisor.start", started)
    tuning = tune("gym/CartPole-v1", algo=algo, curves=CURVES, output=tmp_path / "out")
    u = tuning.update_interval
    x_a, x_l = tuning.solution.actor_cores, tuning.solution.learner_cores
    most = 16 if algo is None else 8
    best = max(min(CURVES.actors(a), u * CURVES.learners(min(most, 16 - a))) for a in range(1, 16))
    assert tuning.steps_per_second == pytest.approx(min(CURVES.actors(x_a), u * CURVES.learners(x_l)))
    assert tuning.steps_per_second >= best / 1.02
    config = make_config("gym/CartPole-v1", read_settings(tmp_path / "out" / "tuned.json"), algo=algo).resolved()
    assert allocation_of(config) == tuning.allocation
    assert config.compute.threads * config.num_learners == max(1, round(x_l))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "tuned.json",
        "curves.json",
        "tuning.txt",
        "tuning.png",
    }
    assert Curves.read(tmp_path / "out" / "curves.json") == CURVES


@pytest.mark.parametrize(
    ("preset", "algo", "given"),
    [
        ("gym/Pendulum-v1", "sac", {}),
        ("gym/CartPole-v1", "dqn", {"replay.n_step": 10}),
        ("gym/CartPole-v1", "dqn", {"num_envs": 4, "learner.threads": 2}),
        ("gym/CartPole-v1", "dqn", {"num_envs": 8, "rollout.num_workers": 2, "learner.num_learners": 2}),
        ("gym/CartPole-v1", "dqn", {"rollout.num_workers": 3}),
        ("gym/Pendulum-v1", "sac", {"rollout.num_workers": 8}),
        ("gym/CartPole-v1", "dqn", {"inference.num_workers": 4}),
        ("gym/CartPole-v1", "dqn", {"num_envs": 12, "inference.num_workers": 2, "rollout.groups_per_worker": 3}),
    ],
)
@pytest.mark.parametrize("slow", ["actors", "learners"])
@pytest.mark.parametrize("cores", [1, 2, 5, 128])
def test_settings_by_curves_are_accepted_and_have_the_speed_that_is_reported(
    preset: str, algo: str, given: dict[str, Any], slow: str, cores: int, probed: dict[str, Probed]
) -> None:
    rates = (8.0, 10_000.0) if slow == "actors" else (10_000.0, 8.0)
    curves = Curves(cores=cores, actors=line(128, rates[0]), learners=line(128, rates[1]))
    tuning = tune(preset, algo=algo, curves=curves, **given)
    config = make_config(preset, tuning.settings, algo=algo).resolved()
    topology = plan_topology(config, probed[preset])
    assert topology.num_workers == config.rollout.num_workers
    assert allocation_of(config) == tuning.allocation
    for key, value in given.items():
        assert tuning.settings[key] == value
    u, learners = config.replay.update_interval, config.num_learners * config.compute.threads
    collected = curves.actors(config.rollout.num_workers + config.inference.num_workers)
    assert tuning.steps_per_second <= min(collected, u * curves.learners(learners)) * (1 + 1e-9)
    solution = tuning.solution
    assert solution.steps_per_second == tuning.steps_per_second
    assert solution.actor_cores + solution.learner_cores <= cores * (1 + 1e-9)
    reached = min(curves.actors(solution.actor_cores), u * curves.learners(solution.learner_cores))
    assert reached == pytest.approx(tuning.steps_per_second)
    if slow == "learners" and ("learner.num_learners" in given or "rollout.num_workers" not in given):
        most = max(1, min(8, (cores - 1) // config.compute.threads))
        assert config.num_learners == given.get("learner.num_learners", most)


@pytest.fixture(scope="module")
def probed() -> dict[str, Probed]:
    """Preset -> what it is."""
    found = {}
    for preset, algo in (("gym/Pendulum-v1", "sac"), ("gym/CartPole-v1", "dqn")):
        with Supervisor() as supervisor:
            found[preset] = probe(supervisor, make_config(preset, algo=algo).resolved())
    return found


def test_workers_are_not_given_up_for_a_second_group_each() -> None:
    fast = Curves(cores=8, actors=line(8, 1000.0), learners=line(8, 1e6))
    fixed = {"num_envs": 64, "envs_per_group": 16}
    tuning = tune("gym/CartPole-v1", curves=fast, **{"regime": "lockstep", "lag": 1, **fixed})
    assert tuning.allocation.rollout_workers == 4
    assert tuning.steps_per_second == pytest.approx(5000)


def test_curves_say_nothing_of_sides_that_take_turns() -> None:
    with pytest.raises(CurveError, match=r"lag=0: collecting and learning take turns .*without --curves"):
        tune("gym/CartPole-v1", curves=CURVES, regime="lockstep", lag=0)


def test_an_algorithm_of_ones_own_gets_one_learner_by_curves() -> None:
    register_algorithm("mine", DQN)
    tuning = tune("gym/CartPole-v1", algo="mine", curves=CURVES)
    assert tuning.settings.get("learner.num_learners", 1) == 1
    assert "whether 'mine' may have several is not in the curves" in tuning.describe()


def _costs(stage: str) -> StageCosts:
    """With one stage that limits."""
    return StageCosts(
        env_group_s=80e-6,
        env_row_s=2e-3 if stage == "environment" else 1e-4,
        inference_batch_s=4e-4 if stage == "inference" else 2e-4,
        inference_group_s=40e-6,
        inference_row_s=3e-4 if stage == "inference" else 2e-5,
        sgd_step_s=0.128 if stage == "learner" else 0.0128,
        learner_speedup=Curve((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (1.0, 1.9, 3.6, 6.5, 11.0, 16.0)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("cores", [16, 56])
@pytest.mark.parametrize("stage", ["environment", "inference", "learner"])
@pytest.mark.parametrize("algo", [None, "dqn"])
def test_curves_that_tune_has_written_give_an_allocation_that_is_as_fast_as_they_say(
    algo: str | None, stage: str, cores: int
) -> None:
    config = make_config("gym/CartPole-v1", algo=algo).resolved()
    workload = workload_of(config, None)
    costs = _costs(stage)
    if config.in_replay:
        costs = replace(costs, sgd_step_s=workload.update_interval * {"learner": 5e-5}.get(stage, 1e-5))
    best = search(costs, workload, space_of(config, workload, {}, cores))
    curves = curves_of(costs, workload, best.allocation, cores)
    tuning = tune("gym/CartPole-v1", algo=algo, curves=Curves.from_json(curves.to_json()))
    assert predict(costs, workload, tuning.allocation, cores).steps_per_second[0] >= 0.93 * tuning.steps_per_second
    # The search also has processes share cores, which curves know nothing of.
    assert tuning.steps_per_second >= 0.65 * best.steps_per_second
    assert tuning.allocation.num_envs == best.allocation.num_envs


def test_curves_that_tune_has_written_contain_the_update_interval() -> None:
    # A robot's preset leaves the epochs to the observations, which curves do not know.
    preset = "gym/MountainCarContinuous-v0"
    unknown = tune(preset, curves=CURVES)
    assert "learner.epochs='auto' was taken as the number for pictures" in unknown.describe()
    known = replace(CURVES, update_interval=unknown.update_interval / 2)
    tuning = tune(preset, curves=Curves.from_json(known.to_json()))
    assert tuning.update_interval == unknown.update_interval / 2
    assert "learner.epochs" not in tuning.describe()
    assert tune(preset, curves=known, **{"learner.epochs": 1}).update_interval == 4 * unknown.update_interval
    with pytest.raises(CurveError, match="update_interval=0: give agent steps"):
        replace(CURVES, update_interval=0)


def test_policies_have_an_environment_each_whatever_the_curves_were_measured_with() -> None:
    measured = replace(CURVES, num_envs=1, envs_per_group=1)
    given = {"population.policies": 4}
    tuning = tune("gym/CartPole-v1", algo="dqn", curves=measured, **given)
    assert tuning.allocation.num_envs >= 4
    assert tuning.allocation.learner_cores == 1, "several learners share one policy"


def test_curves_of_unknown_division_say_so() -> None:
    assert "the curves do not say how many of the actors' cores" in tune("gym/CartPole-v1", curves=CURVES).describe()
    divided = replace(CURVES, policy_workers=tuple(max(1, x // 4) for x in range(1, 17)))
    tuning = tune("gym/CartPole-v1", curves=divided)
    assert "do not say" not in tuning.describe()
    assert tuning.allocation.policy_workers == pytest.approx(tuning.allocation.rollout_workers / 3, abs=1)
    # What the user has set stays.
    assert tune("gym/CartPole-v1", curves=divided, **{"inference.num_workers": 2}).allocation.policy_workers == 2


def test_of_allocations_that_are_as_fast_by_the_curves_the_preset_stays() -> None:
    flat = Curve((1.0, 3.0, 128.0), (50_000.0, 99_500.0, 100_000.0))
    tuning = tune("gym/CartPole-v1", curves=Curves(cores=128, actors=flat, learners=line(8, 1e6)))
    assert tuning.allocation.num_envs == tuning.preset.num_envs


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("dqn", {"inference.num_workers": 3}),
        ("dqn", {"rollout.num_workers": 5, "inference.num_workers": 3}),
        (None, {"rollout.num_workers": 3}),
        (None, {"rollout.num_workers": 100}),
        (None, {"inference.num_workers": 65}),
        (None, {"rollout.num_workers": 5, "rollout.groups_per_worker": 3}),
    ],
)
def test_workers_that_are_given_get_groups(algo: str | None, given: dict[str, Any]) -> None:
    tuning = tune("gym/CartPole-v1", algo=algo, curves=replace(CURVES, cores=128), **given)
    config = make_config("gym/CartPole-v1", tuning.settings, algo=algo).resolved()
    assert allocation_of(config) == tuning.allocation
    for key, value in given.items():
        assert tuning.settings[key] == value


MACHINE = Curves(
    cores=56,
    actors=Curve((1.0, 8.0, 32.0, 56.0), (900.0, 7100.0, 26_000.0, 40_000.0)),
    learners=Curve((1.0,), (120.0,)),
)


def test_environments_are_those_that_the_curves_were_measured_with() -> None:
    measured = replace(MACHINE, policy_workers=(1, 2, 8, 14), num_envs=448, envs_per_group=8)
    # The preset's eight environments would be nearer to it, but the curves do not cover them.
    tuning = tune("atari/pong", algo="dqn", curves=measured)
    assert (tuning.allocation.num_envs, tuning.allocation.envs_per_group) == (448, 8)
    assert not any("were measured with" in note for note in tuning.notes)
    alone = tune("atari/pong", algo="dqn", curves=replace(measured, envs_per_group=None))
    assert alone.allocation.num_envs == 448
    odd = tune("atari/pong", algo="dqn", curves=replace(measured, num_envs=480, envs_per_group=12))
    assert (odd.allocation.num_envs, odd.allocation.envs_per_group) == (480, 12)
    tuning = tune("atari/pong", algo="dqn", curves=measured, num_envs=32)
    assert (tuning.allocation.num_envs, tuning.allocation.envs_per_group) == (32, 8)
    assert any("were measured with actors.num_envs=448 (now 32)" in note for note in tuning.notes)
    tuning = tune("atari/pong", algo="dqn", curves=measured, regime="replay", envs_per_group=4)
    assert (tuning.allocation.num_envs, tuning.allocation.envs_per_group) == (448, 4)


@pytest.mark.parametrize("algo", [None, "dqn"])
def test_a_single_learner_that_is_the_limit_is_named(algo: str | None) -> None:
    assert "Learning limits the speed" in tune("atari/pong", algo=algo, curves=MACHINE).describe()


def by_curves(actors: Curve, learners: Curve, cores: int, given: dict[str, Any]) -> Tuning:
    config = make_config("gym/CartPole-v1", given, algo="dqn").resolved()
    curves = Curves(cores=cores, actors=actors, learners=learners)
    return tune_by_curves(config, "a name", given, curves, time.monotonic())


@pytest.mark.parametrize(
    ("actors", "learners", "limit", "helps"),
    [
        (100.0, 1e6, "Collecting limits the speed: the learner waits for it.", "collecting"),
        (1e6, 10.0, "Learning limits the speed: collecting waits for it.", "learning"),
    ],
)
def test_only_the_side_that_limits_is_worth_making_faster(
    actors: float, learners: float, limit: str, helps: str
) -> None:
    given: dict[str, Any] = {"num_envs": 8, "rollout.num_workers": 2, "learner.num_learners": 1}
    tuning = by_curves(line(8, actors), line(8, learners), 8, given)
    assert tuning.name == "a name"
    assert tuning.limit == limit
    gains = {change.what: change.gain for change in tuning.changes}
    assert gains.pop(f"{helps} a quarter faster") == pytest.approx(0.25)
    assert list(gains.values()) == [pytest.approx(0.0)]
    # By hand: two rollout workers and a policy worker, one learner of as many threads as are configured.
    u = tuning.update_interval
    collected = actors * (2 + tuning.allocation.policy_workers)
    assert tuning.steps_per_second == pytest.approx(min(collected, u * learners * tuning.allocation.learner_cores))
    assert given.items() <= tuning.settings.items()


def test_cores_limit_where_both_sides_are_busy() -> None:
    tuning = by_curves(line(2, 1000.0), line(2, 1000.0), 1, {"num_envs": 8, "rollout.num_workers": 1})
    assert tuning.limit == "The number of cores limits the speed: collecting and learning are always busy."
    # A core that is shared: x_a = u x_l and x_a + x_l = 1 give 1000 u / (1 + u) agent steps a second.
    u = tuning.update_interval
    assert tuning.steps_per_second == pytest.approx(1000 * u / (1 + u))
    assert tuning.solution is not None
    assert tuning.solution.actor_cores == pytest.approx(u / (1 + u))
    assert tuning.solution.learner_cores == pytest.approx(1 / (1 + u))

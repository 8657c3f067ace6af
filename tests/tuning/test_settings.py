"""What may be chosen of a configuration, and what becomes of it: settings that a run accepts."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.registry import register_algorithm
from rollmill.api import Run, make_config
from rollmill.cli import main
from rollmill.envs import registry
from rollmill.regimes.replay import plan_topology
from rollmill.regimes.running import probe
from rollmill.regimes.setup import Probed
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import flatten
from rollmill.tuning.curves import Curve, CurveError, Curves
from rollmill.tuning.explain import curves_of
from rollmill.tuning.model import StageCosts, predict
from rollmill.tuning.profile import workload_of
from rollmill.tuning.search import search
from rollmill.tuning.settings import (
    LEARNER_COUNTS,
    SettingsFileError,
    allocation_of,
    read_settings,
    settings_of,
    space_of,
    under,
)
from rollmill.tuning.tune import tune

CURVES = Curves(
    cores=16,
    actors=Curve.through((float(x), 1000.0 * x) for x in range(1, 17)),
    learners=Curve.through((float(x), 25.0 * x) for x in range(1, 17)),
)


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.settings.config.usable_cores", lambda: 16)


@pytest.mark.parametrize(
    ("preset", "algo", "given"),
    [
        ("gym/CartPole-v1", None, {}),
        ("gym/CartPole-v1", None, {"num_envs": 48, "rollout.num_workers": 3}),
        ("gym/CartPole-v1", None, {"rollout.groups_per_worker": 4}),
        ("gym/CartPole-v1", None, {"regime": "lockstep"}),
        ("gym/CartPole-v1", "dqn", {}),
        ("gym/CartPole-v1", "dqn", {"num_envs": 4, "learner.threads": 2}),
        ("gym/CartPole-v1", "dqn", {"learner.num_learners": 3, "learner.max_staleness": 2}),
    ],
)
def test_every_allocation_is_a_configuration_that_keeps_what_was_given(
    preset: str, algo: str | None, given: dict[str, Any]
) -> None:
    config = make_config(preset, given, algo=algo).resolved()
    space = space_of(config, workload_of(config, None), given, 16)
    table = space.allocations()
    assert len(table.num_envs) > 1
    for i in range(0, len(table.num_envs), max(1, len(table.num_envs) // 50)):
        chosen = table.at(i)
        made = make_config(preset, under(given, settings_of(chosen, config)), algo=algo).resolved()
        assert allocation_of(made) == chosen
        assert given.items() <= flatten(made).items()
        if "rollout.groups_per_worker" in given:
            assert chosen.num_groups == given["rollout.groups_per_worker"] * chosen.rollout_workers
        if made.in_lockstep:
            for name in ("num_envs", "envs_per_group", "rollout_length", "optimiser", "compute", "regime"):
                assert getattr(made, name) == getattr(config, name)
        if made.in_replay:
            assert made.replay == config.replay


@pytest.mark.parametrize(
    ("given", "counts", "learners"),
    [
        ({}, LEARNER_COUNTS, [1, 2, 3, 4, 6, 8]),
        ({"learner.threads": 2}, LEARNER_COUNTS, [1, 2, 3, 4, 6, 8]),
        ({"learner.num_learners": 12}, LEARNER_COUNTS, [12]),
        ({}, (1,), [1]),
    ],
)
def test_learners_are_so_few_that_gradients_are_not_too_stale(
    given: dict[str, Any], counts: tuple[int, ...], learners: list[int]
) -> None:
    config = make_config("gym/CartPole-v1", given, algo="dqn").resolved()
    space = space_of(config, workload_of(config, None), given, 16 * config.compute.threads, learner_counts=counts)
    assert [cores // config.compute.threads for cores in space.learner_cores] == learners


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


def _line(most: int, rate: float) -> Curve:
    return Curve.through((float(x), rate * x) for x in range(1, most + 1))


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
    curves = Curves(cores=cores, actors=_line(128, rates[0]), learners=_line(128, rates[1]))
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


def test_the_command_that_tune_prints_trains_what_was_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maze.py").write_text(
        "import gymnasium, rollmill\nrollmill.register_env('my/maze', lambda: gymnasium.make('CartPole-v1'))\n"
    )
    monkeypatch.setattr(registry, "_registered", {})  # What the module registers is for this test alone.
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("machine.json").write_text(json.dumps(CURVES.to_json()))
    argv = ["tune", "--import", "maze", "my/maze", "--algo", "dqn", "--output", "with space"]
    assert main([*argv, "--curves", "machine.json", "--total-steps", "20000", "--seed", "3", "--n-step", "2"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command == ["rollmill", "train", "my/maze", "--algo", "dqn", "--settings", "with space/tuned.json"]
    given: dict[str, Any] = {}

    def train(preset: str, **arguments: Any) -> Run:
        given.update(arguments, preset=preset)
        return Run(Path("run"), 20_000, None, "", "total_steps")

    monkeypatch.setattr("rollmill.api.train", train)
    assert main(command[1:]) == 0
    assert (given["preset"], given["algo"], given["protocol"]) == ("my/maze", "dqn", None)
    assert [given[key] for key in ("total_steps", "seed", "replay.n_step")] == ["20000", "3", "2"]
    assert given["env.imports"] == ("maze",)
    assert main([*command[1:], "--total-steps", "30000"]) == 0
    assert (given["total_steps"], given["seed"]) == (30000, "3")
    assert main(["tune", "atari/pong", "--protocol", "machado", "--curves", "machine.json", "--output", "out"]) == 0
    assert "rollmill train atari/pong --protocol machado --settings out/" in capsys.readouterr().out


def test_tuning_before_a_training_knows_its_steps_and_refuses_a_directory_that_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tuned(preset: str, **arguments: Any) -> Any:
        raise SettingsFileError(f"{preset} with {arguments['total_steps']} steps of seed {arguments['seed']}")

    monkeypatch.setattr("rollmill.tuning.tune.tune", tuned)
    argv = ["train", "gym/CartPole-v1", "--tune", "--total-steps", "7000", "--seed", "5"]
    assert main(argv) == 2
    assert "gym/CartPole-v1 with 7000 steps of seed 5" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main([*argv, "--run-dir", str(tmp_path)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_workers_are_not_given_up_for_a_second_group_each() -> None:
    fast = Curves(cores=8, actors=_line(8, 1000.0), learners=_line(8, 1e6))
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


def test_cores_go_over_those_of_the_curves() -> None:
    assert tune("gym/CartPole-v1", algo="dqn", curves=CURVES, cores=4).curves.cores == 4
    for cores in (0, 2.5, "8", True):
        with pytest.raises(CurveError, match="give the machine's cores, a whole number from 1 to 65536"):
            tune("gym/CartPole-v1", algo="dqn", curves=CURVES, cores=cores)  # type: ignore[arg-type]  # refused


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
    tuning = tune("gym/CartPole-v1", curves=Curves(cores=128, actors=flat, learners=_line(8, 1e6)))
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


@pytest.mark.parametrize("lag", [1000, 40])
def test_samples_that_would_be_too_old_to_be_learned_from_are_not_collected(lag: int) -> None:
    given = {"learner.max_policy_lag": lag}
    config = make_config("gym/CartPole-v1", given).resolved()
    workload = workload_of(config, None)
    space = space_of(config, workload, given, 65_536)
    sgd_steps_a_slot = space.most_envs * config.rollout_length / workload.update_interval
    assert sgd_steps_a_slot <= lag / 2 or space.most_envs == config.num_envs


def test_train_takes_no_arguments_of_tune_for_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--seconds", "--say", "--curves", "--output", "--cores"):
        assert main(["train", "gym/CartPole-v1", "--tune", argument, "5"]) == 2
        assert f"unknown setting '{argument[2:]}'" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(SettingsFileError, match="cannot be written"):
            tune("gym/CartPole-v1", output=directory)


def test_the_summary_has_a_sentence_for_each_fact() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    measured = replace(tuning, predicted=53_000.0, steps_per_second=34_000.0, gain=1.21, notes=("it was dark",))
    assert measured.summary().splitlines()[1:3] == [
        "The model predicts 53,000 agent steps/s; 34,000 were measured, because processes also wait for each other "
        "and for a free core.",
        "That is 1.21 times the speed of the preset's own settings.",
    ]
    assert measured.summary().endswith("\nNote: it was dark.")
    near = replace(measured, predicted=35_000.0, allocation=tuning.preset)
    assert near.summary().splitlines()[1:3] == [
        "34,000 agent steps/s were measured; the model predicts 35,000.",
        "Nothing that was tried is clearly faster than the preset's own settings.",
    ]
    elsewhere = replace(measured, gain=None)
    assert "The model predicts 34,000 agent steps/s there, from what was measured on this machine." in (
        elsewhere.summary().splitlines()
    )
    assert measured.describe().startswith(measured.summary())


def test_both_sides_of_the_equation_are_shown() -> None:
    slow = Curves(cores=8, actors=_line(8, 1000.0), learners=Curve((1.0,), (0.5,)))
    tuning = tune("gym/CartPole-v1", algo="dqn", curves=slow)
    learned = tuning.update_interval * 0.5
    assert f"u f_l(x_l) = {learned:,.0f} agent steps/s" in tuning.describe()
    assert "Learning limits the speed" in tuning.describe()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "contains no settings"),
        ("[1]", "it is no JSON object"),
        ('{"preset": "gym/CartPole-v1"}', "names the preset 'gym/CartPole-v1': remove it"),
    ],
)
def test_files_without_settings_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsFileError, match=message):
        read_settings(path)
    assert main(["train", "gym/CartPole-v1", "--settings", str(path)]) == 2


def test_what_is_given_by_hand_goes_over_the_file_however_it_is_written() -> None:
    merged = under({"learner.epochs": 2, "num_envs": 4}, {"epochs": "3"})
    assert merged == {"learner.epochs": "3", "num_envs": 4}
    with pytest.raises(OptionError, match="unknown setting 'num_environments'"):
        under({"num_environments": 4}, {})


def test_settings_that_no_file_can_hold_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsFileError, match="leave output out"):
        tune("gym/CartPole-v1", output=tmp_path, **{"env.kwargs": {"f": object()}})


def test_wrong_usage_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", "--tune"]) == 2
    assert "--tune needs a preset" in capsys.readouterr().err
    assert main(["tune", "gym/CartPole-v1", "--cores", "0"]) == 2
    assert main(["tune", "gym/CartPole-v1", "--curves", "/nowhere.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    launched = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**launched, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "gym/CartPole-v1", "--tune"]) == 2
    assert "--tune with several ranks" in capsys.readouterr().err


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


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    output = tmp_path / "out"
    refused: list[dict[str, Any]] = [{"algo": "none"}, {"curves": tmp_path / "missing.json"}, {"cores": 0}]
    for changes in refused:
        with pytest.raises((ValueError, OSError)):
            tune("gym/CartPole-v1", output=output, **changes)
        assert not output.exists()

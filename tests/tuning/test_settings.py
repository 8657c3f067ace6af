"""What may be chosen of a configuration, and what becomes of it: settings that a run accepts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.tuning.straight_curves import CURVES

from rollmill.api import Run, make_config
from rollmill.cli import main
from rollmill.envs import registry
from rollmill.runtime.signed_files import UntrustedError
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import flatten
from rollmill.tuning.curves import CurveError
from rollmill.tuning.profile import workload_of
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

pytestmark = pytest.mark.usefixtures("sixteen_cores")

_TASKS = "gym/CartPole-v1,gym/Acrobot-v1,gym/MountainCar-v0"


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
        (_TASKS, None, {}),
        (_TASKS, None, {"task_share": "compute"}),
        (_TASKS, None, {"population.policies": 2}),
        ("envpool/ConnectFour-v1", "dqn", {"population.policies": 2}),
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


def test_cores_go_over_those_of_the_curves() -> None:
    assert tune("gym/CartPole-v1", algo="dqn", curves=CURVES, cores=4).curves.cores == 4
    for cores in (0, 2.5, "8", True):
        with pytest.raises(CurveError, match="give the machine's cores, a whole number from 1 to 65536"):
            tune("gym/CartPole-v1", algo="dqn", curves=CURVES, cores=cores)  # type: ignore[arg-type]  # refused


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


@pytest.mark.parametrize(
    ("settings", "is_code"),
    [
        ({"env.wrappers": "helpers.Bonus()"}, True),
        ({"env.wrappers": "RecordVideo(video_folder='x')"}, True),
        ({"env.wrappers": "TransformReward(2)"}, False),
        ({"env.tasks": "gym/CartPole-v1,helpers:Env"}, True),
        ({"env.tasks": ["gym/CartPole-v1", "gym/Acrobot-v1"]}, False),
        ({"env.dmlab.level_cache": "maps"}, True),
        ({"env.kwargs.size": 3}, False),
        ({"env.kwargs.size": "a:b"}, True),
    ],
)
def test_files_of_others_name_no_code(settings: dict[str, Any], is_code: bool, tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(settings))
    if not is_code:
        assert read_settings(path) == settings
        return
    with pytest.raises(UntrustedError, match="--trust"):
        read_settings(path)
    assert read_settings(path, trust=True) == settings


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


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    output = tmp_path / "out"
    refused: list[dict[str, Any]] = [{"algo": "none"}, {"curves": tmp_path / "missing.json"}, {"cores": 0}]
    for changes in refused:
        with pytest.raises((ValueError, OSError)):
            tune("gym/CartPole-v1", output=output, **changes)
        assert not output.exists()

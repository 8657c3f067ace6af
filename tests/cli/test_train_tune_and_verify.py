"""The commands that train: their options, exit codes, and what they print last."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import rollmill.cli.train
import rollmill.cli.tune
import rollmill.cli.verify
from rollmill.cli.command import Command
from rollmill.settings.option_values import OptionError
from rollmill.settings.run_config import load_config
from rollmill.tuning.curves import Curve, Curves

TINY: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 8,
    "rollout.num_workers": 1,
    "learner.batch_size": 16,
    "learner.minibatches": 1,
    "learner.epochs": 1,
    "model.mlp_sizes": "8",
    "report_every_s": 0.1,
}
STOPPING = """
import rollmill

class Stopping(rollmill.Callback):
    def on_start(self, run):
        assert run.config.seed == 7
        print(f"started {run.config.total_steps}")
        run.stop()
"""

CURVES = Curves(
    cores=16,
    actors=Curve.through((float(x), 1000.0 * x) for x in range(1, 17)),
    learners=Curve.through((float(x), 25.0 * x) for x in range(1, 17)),
)
BOTH_BUSY = "The number of cores limits the speed: collecting and learning are always busy."
LEARNING_LIMITS = "Learning limits the speed: collecting waits for it."


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")


def parsed(command: Command, *words: str) -> argparse.Namespace:
    return command.parser.parse_args(list(words))


def run(command: Command, words: str, **settings: Any) -> int:
    return command.run(parsed(command, *words.split()), settings)


def test_options_of_train() -> None:
    command = rollmill.cli.train.make_command()
    assert command.takes_settings
    given = parsed(command, "gym/CartPole-v1")
    assert (given.total_steps, given.seed, given.run_dir, given.settings, given.callbacks) == (None,) * 5
    assert (given.resume, given.tune, given.quiet, given.trust) == (False,) * 4
    given = parsed(command, "--total-steps", "3e6", "--seed", "0", "--callback", "a:A", "--callback", "b.py:B")
    assert (given.total_steps, given.seed, given.callbacks) == (3_000_000, 0, ["a:A", "b.py:B"])


def test_train_prints_the_runs_directory_and_takes_callbacks_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stopping_callback.py").write_text(STOPPING)
    (tmp_path / "settings.json").write_text(json.dumps({"num_envs": 4, "learner.learning_rate": 0.25}))
    words = "gym/CartPole-v1 --run-dir mine --seed 7 --total-steps 640 --quiet --settings settings.json"
    done = run(rollmill.cli.train.make_command(), f"{words} --callback stopping_callback:Stopping", **TINY)
    assert done == 0
    assert capsys.readouterr().out == "started 640\nmine\n"
    config = load_config(tmp_path / "mine")
    assert (config.seed, config.total_steps) == (7, 640)
    assert config.num_envs == 2, "what is given wins over the file"
    assert config.optimiser.learning_rate == 0.25


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tune", "^--tune needs a preset: name what to train$"),
        ("gym/CartPole-v1 --callback json", "--callback json: give module:Class or path/to/file.py:Class"),
        ("gym/CartPole-v1 --tune --run-dir there", "there"),
    ],
)
def test_train_refuses_before_it_starts(tmp_path: Path, words: str, message: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    with pytest.raises((OptionError, ValueError), match=message):
        run(rollmill.cli.train.make_command(), words)


def test_several_ranks_do_not_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="--tune with several ranks: each rank would choose its own allocation"):
        run(rollmill.cli.train.make_command(), "gym/CartPole-v1 --tune")


def test_options_of_tune_and_verify() -> None:
    given = parsed(rollmill.cli.tune.make_command(), "gym/CartPole-v1")
    assert (given.seconds, given.curves, given.cores, given.output) == (60.0, None, None, Path("tuning"))
    given = parsed(rollmill.cli.verify.make_command(), "gym/CartPole-v1", "--delay", "0.5", "--algo", "impala")
    assert (given.updates, given.delay, given.algo) == (5, 0.5, "impala")
    assert rollmill.cli.tune.make_command().takes_settings
    assert rollmill.cli.verify.make_command().takes_settings


def test_tune_takes_curves_and_says_what_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmill.settings.config.usable_cores", lambda: 16)
    tune = rollmill.cli.tune.make_command()
    curves = tmp_path / "machine.json"
    curves.write_text(json.dumps(CURVES.to_json()))
    words = f"gym/CartPole-v1 --curves {curves} --output {tmp_path / 'out'}"
    assert run(tune, words, num_envs=32) == 0
    said = capsys.readouterr().out
    first, second, third = said.splitlines()[:3]
    assert first.startswith("gym/CartPole-v1 on 16 cores: the fastest settings found are ")
    assert first.endswith(" for learning, and 32 environments in 32 groups.")
    assert second.startswith("The curves predict ")
    assert third in ("Collecting limits the speed: the learner waits for it.", BOTH_BUSY, LEARNING_LIMITS)
    assert "f_a(" not in said
    assert run(tune, f"{words} --verbose", num_envs=32) == 0
    verbose = capsys.readouterr().out
    assert verbose.startswith(f"{first}\n{second}\n")
    assert "f_a(x_a) = " in verbose
    assert "learning a quarter faster" in verbose
    assert f"rollmill train gym/CartPole-v1 --settings {tmp_path / 'out' / 'tuned.json'}" in said
    assert json.loads((tmp_path / "out" / "tuned.json").read_text())["num_envs"] == 32
    assert run(tune, f"{words} --cores 4 --json", num_envs=32) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == {
        *(
            "name",
            "settings",
            "steps_per_second",
            "gain",
            "limit",
            "bounds",
            "notes",
            "changes",
            "curves",
            "solution",
            "tried",
        ),
        "seconds",
    }
    assert result["curves"]["cores"] == 4
    assert result["solution"]["actor_cores"] + result["solution"]["learner_cores"] <= 4


@pytest.mark.slow
def test_verify_prints_whether_all_updates_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    words = "gym/CartPole-v1 --updates 1 --delay 0.001 --json"
    assert run(rollmill.cli.verify.make_command(), words, **TINY) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["equal"] is True
    assert shown.err
    replay = {"regime": "replay", "off_policy.algorithm": "dqn"}
    with pytest.raises(ValueError, match="regime='replay' cannot be verified"):
        run(rollmill.cli.verify.make_command(), "gym/CartPole-v1", **replay)

"""The commands that make many runs: their options, what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.campaigns.small import WORDS

import rollmill.cli.suite
import rollmill.cli.sweep
from rollmill.cli import main


def test_the_defaults() -> None:
    given = rollmill.cli.sweep.make_command().parser.parse_args(["gym/CartPole-v1"])
    assert (given.trials, given.jobs, given.sampler, given.pruner) == (20, 1, "tpe", "median")
    assert (given.metric, given.direction, given.seeds_per_trial) == ("episode_return", "maximize", 1)
    given = rollmill.cli.suite.make_command().parser.parse_args(["atari10"])
    assert (given.suite, given.seeds, given.jobs, given.envs, given.output) == ("atari10", None, 1, None, None)


def test_the_help_says_what_a_suite_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "--help"]) == 0
    assert "`rollmill train suite/NAME` is something else" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sweep", "gym/CartPole-v1"], "--space is missing: give a TOML file"),
        (["sweep", "gym/CartPole-v1", "--space", "none.toml"], "none.toml cannot be read"),
        (
            ["sweep", "gym/CartPole-v1", "--space", "s.toml", "--sampler", "bayes"],
            "sampler='bayes': choose one",
        ),
        (["sweep", "gym/CartPole-v1", "--space", "s.toml", "--trial", "3"], "did you mean --trials?"),
        (["suite", "atari5"], "there is no suite 'atari5'; did you mean atari57?"),
        (["suite", "classic", "--envs", "gym/Pong"], "the suite classic has no 'gym/Pong'"),
        (["suite", "classic", "--lr", "1"], "unknown setting 'lr'; here it is learner.learning_rate"),
    ],
)
def test_wrong_usage(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "sweep" in argv:
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_without_a_result_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text("[learning_rate]\nlow = 1e-4\nhigh = 1e-3\n")
    words = ["sweep", "gym/CartPole-v1", "--space", "space.toml", "--trials", "1", "--json", "--quiet", *WORDS]
    # A run of a few steps ends no episode.
    assert main([*words, "--total-steps", "128", "--num-envs", "128", "--rollout-length", "1"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "1 failed; none has a value of episode_return"
    result = json.loads(out[-1])
    assert result["best"] is None
    assert result["trials"][0]["state"] == "failed"
    assert Path("runs/sweep_gym_CartPole-v1/sweep.db").exists()

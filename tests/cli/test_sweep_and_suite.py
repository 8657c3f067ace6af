"""The commands that make many runs: their options, what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill.cli.suite
from rollmill.cli import main


def test_the_defaults() -> None:
    given = rollmill.cli.suite.make_command().parser.parse_args(["atari10"])
    assert (given.suite, given.seeds, given.jobs, given.envs, given.output) == ("atari10", None, 1, None, None)


def test_the_help_says_what_a_suite_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "--help"]) == 0
    assert "`rollmill train suite/NAME` is something else" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
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
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

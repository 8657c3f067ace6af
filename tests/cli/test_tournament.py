"""The command that lets players meet."""

from __future__ import annotations

import json

import pytest
from tests.regimes.nim import Nim

import rollmill
from rollmill.cli import main, tournament
from rollmill.envs.registry import register_env
from rollmill.evaluation.players import PLAYERS


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    monkeypatch.setattr(PLAYERS, "factories", {})
    register_env("test/nim", Nim)
    rollmill.register_player("perfect", lambda: lambda observation, mask: max(0, int(observation.argmax()) % 4 - 1))


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", "perfect", "random", "--env", "test/nim", "--matches", "5", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["players"] == ["perfect", "random"]
    pair = found["pairs"][0]
    assert pair["wins"] + pair["draws"] + pair["losses"] == 10
    assert set(pair["seats"]) == {"first", "second"}
    assert found["ratings"]["perfect"] > found["ratings"]["random"]


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", "random", "perfect", "--env", "test/nim", "--matches", "3"]) == 0
    shown = capsys.readouterr()
    assert "random against perfect" in shown.err
    assert "perfect against random" in shown.out
    assert "95 %" not in shown.err


def test_wrong_players_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", "random", "perfct", "--env", "test/nim"]) == 2
    assert "did you mean 'perfect'" in capsys.readouterr().err
    assert main(["tournament", "random"]) == 2
    assert "at least two" in capsys.readouterr().err
    assert "--matches" in tournament.make_command().parser.format_help()

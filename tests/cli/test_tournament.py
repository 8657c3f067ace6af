"""The command that lets players meet."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_page_has_results_and_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("envpool")
    folder = tmp_path / "page"
    players = ["random", "a<b"]
    rollmill.register_player("a<b", lambda: lambda observation, mask: int(mask.argmax()))
    command = ["tournament", *players, "--env", "envpool/ConnectFour-v1", "--matches", "2", "--quiet"]
    assert main([*command, "--output", str(folder)]) == 0
    assert str(folder / "tournament.html") in capsys.readouterr().out
    page = (folder / "tournament.html").read_text()
    (video,) = (folder / "videos").iterdir()
    assert f'src="videos/{video.name}"' in page
    assert video.stat().st_size > 1000
    assert "a&lt;b" in page
    assert "a<b" not in page
    result = json.loads((folder / "tournament.json").read_text())
    assert result["pairs"][0]["video"] == str(video)


@pytest.mark.filterwarnings("default:no video")
def test_a_game_that_cannot_be_drawn_gives_a_page_without_videos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tournament", "perfect", "random", "--env", "test/nim", "--matches", "2", "--quiet"]
    assert main([*command, "--output", str(tmp_path / "page")]) == 0
    assert "no video was written" in capsys.readouterr().err
    assert "<video" not in (tmp_path / "page/tournament.html").read_text()


def test_a_page_that_cannot_be_written_is_told_before_the_first_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    command = ["tournament", "perfect", "random", "--env", "test/nim", "--matches", "2"]
    assert main([*command, "--output", str(tmp_path / "file")]) == 2
    shown = capsys.readouterr()
    assert "the page cannot be written" in shown.err
    assert "perfect against random" not in shown.err


@pytest.mark.filterwarnings("default:no video")
def test_a_disk_that_fills_up_costs_the_page_and_not_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page/tournament.json").mkdir(parents=True)
    command = ["tournament", "perfect", "random", "--env", "test/nim", "--matches", "2", "--quiet", "--json"]
    assert main([*command, "--output", str(tmp_path / "page")]) == 2
    shown = capsys.readouterr()
    assert "the page cannot be written" in shown.err
    assert json.loads(shown.out.splitlines()[-1])["players"] == ["perfect", "random"]


def test_wrong_players_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", "random", "perfct", "--env", "test/nim"]) == 2
    assert "did you mean 'perfect'" in capsys.readouterr().err
    assert main(["tournament", "random"]) == 2
    assert "at least two" in capsys.readouterr().err
    assert "--matches" in tournament.make_command().parser.format_help()

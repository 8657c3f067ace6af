"""The commands that play an agent: their options, which network plays, and what they print."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import rollmill.cli.evaluate
import rollmill.cli.playing
import rollmill.cli.watch
from rollmill.cli.command import Command
from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.signed_files import signed
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import to_json
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

MAKERS = [rollmill.cli.evaluate.make_command, rollmill.cli.watch.make_command]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of CartPole whose latest checkpoint is of 9 agent steps and whose best is of 7."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # The commands replace it.
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    env = EnvConfig(name="gym/CartPole-v1")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(signed({**to_json(env), **to_json(ModelConfig())})))
    spec = probe(env)
    network = make_model(spec.observation, spec.action, ModelConfig())
    store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    for steps, metric in ((7, 2.0), (9, 1.0)):
        state = {"model": network.state_dict(), "counters": {"agent_steps": steps}}
        store.save(state, agent_steps=steps, metric=metric)
    return folder


def arguments(command: Command, *words: object) -> argparse.Namespace:
    return command.parser.parse_args(list(map(str, words)))


def evaluated(run_dir: Path, capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    command = rollmill.cli.evaluate.make_command()
    given = arguments(command, run_dir, "--episodes", 2, "--num-envs", 2, "--json", *words)
    assert command.run(given, {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("make", MAKERS)
def test_both_commands_have_the_options_of_playing(make: Callable[[], Command]) -> None:
    command = make()
    assert not command.takes_settings
    given = arguments(command, "runs/a")
    assert (given.checkpoint, given.device, given.trust, given.modules) == ("latest", "cpu", False, None)
    assert rollmill.cli.playing.deterministic(given) is None
    words = "--checkpoint best --device cuda:1 --deterministic --trust --import a --import b"
    given = arguments(command, "runs/a", *words.split())
    assert (given.run_dir, given.checkpoint, given.device, given.trust) == (Path("runs/a"), "best", "cuda:1", True)
    assert given.modules == ["a", "b"]
    assert rollmill.cli.playing.deterministic(given) is True
    assert rollmill.cli.playing.deterministic(arguments(command, "runs/a", "--explore")) is False


@pytest.mark.parametrize("make", MAKERS)
def test_contradicting_flags_are_refused(make: Callable[[], Command]) -> None:
    given = arguments(make(), "runs/a", "--explore", "--deterministic")
    with pytest.raises(
        OptionError, match="--deterministic and --explore contradict each other; give one of them, or n"
    ):
        rollmill.cli.playing.deterministic(given)


def test_warnings_are_printed_as_messages_without_their_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    rollmill.cli.playing.show_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        rollmill.cli.playing.show_warnings()
        warnings.warn("the newest checkpoint is torn", stacklevel=1)
    assert capsys.readouterr().err == "rollmill: the newest checkpoint is torn\n"


def test_eval_has_defaults_for_everything_but_the_run() -> None:
    given = arguments(rollmill.cli.evaluate.make_command(), "runs/a")
    assert (given.episodes, given.num_envs, given.seed, given.max_episode_steps) == (100, None, 0, None)
    assert (given.video, given.json) == (None, False)


def test_eval_plays_the_checkpoint_episodes_and_limit_that_are_given(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latest = evaluated(run_dir, capsys)
    assert (latest["agent_steps"], latest["episodes"]) == (9, 2)
    best = evaluated(run_dir, capsys, "--checkpoint", "best", "--max-episode-steps", 3, "--explore")
    assert (best["agent_steps"], best["lengths"]) == (7, [3, 3])
    seeds = [evaluated(run_dir, capsys, "--explore", "--seed", seed)["lengths"] for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_eval_describes_its_result_in_words(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = rollmill.cli.evaluate.make_command()
    assert command.run(arguments(command, run_dir, "--episodes", 3, "--deterministic"), {}) == 0
    said = capsys.readouterr().out
    assert "3 episodes" in said
    assert "its best actions" in said


def test_watch_writes_a_video_where_one_is_asked_for(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = rollmill.cli.watch.make_command()
    given = arguments(command, run_dir)
    assert (given.episodes, given.follow, given.seed, given.video) == (None, False, 0, None)
    assert command.run(arguments(command, run_dir, "--video", tmp_path / "a.mp4", "--episodes", 1), {}) == 0
    assert (tmp_path / "a.mp4").stat().st_size > 1000
    assert "a.mp4" in capsys.readouterr().out

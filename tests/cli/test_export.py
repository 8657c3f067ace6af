"""``rollmill export``: its options, what it prints, and what it refuses."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from rollmill.cli import main
from rollmill.cli.export import make_command
from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.evaluation.saved_spaces import write_spaces
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.signed_files import signed
from rollmill.settings.options import to_json
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of CartPole as it was initialised."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # The command replaces it.
    folder, env = tmp_path / "run", EnvConfig(name="gym/CartPole-v1")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(signed({**to_json(env), **to_json(ModelConfig())})))
    spec = probe(env)
    assert spec.spaces is not None
    write_spaces(folder, spec.spaces)
    torch.manual_seed(0)
    state = {"model": make_model(spec.observation, spec.action, ModelConfig()).state_dict()}
    CheckpointStore(folder / "checkpoints", CheckpointConfig()).save(
        {**state, "counters": {"agent_steps": 5}}, agent_steps=5
    )
    return folder


def test_the_defaults_are_those_of_the_help() -> None:
    given = make_command().parser.parse_args(["runs/a"])
    assert (given.format, given.checkpoint, given.output) == (None, "latest", None)
    assert not given.sample
    assert "onnxruntime" in make_command().parser.format_help()


def test_a_file_is_written_and_described(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run_dir), "--format", "torch"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{run_dir / 'agent.pt2'} (torch, ")
    assert "  inputs   obs float32 [N, 4]" in printed
    assert "checked  against agent.act on 1,000 random observations" in printed
    assert "other choices: 0" in printed


def test_json_is_one_line(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(run_dir), "--format=torch", "--sample", "--output", str(tmp_path / "a.pt2"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == str(tmp_path / "a.pt2")
    assert [each["name"] for each in found["metadata"]["inputs"]] == ["obs", "uniform"]
    assert found["checked"]["differing"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--deterministic", "--sample"], "--deterministic and --sample contradict each other"),
        (["--format", "tflite"], "format 'tflite' was given; choose one of onnx, torch, safetensors"),
        (["--checkpoint", "nowhere.pt"], "there is no checkpoint nowhere.pt"),
        (["--policy", "red"], "has no policy 'red'"),
        (["--task", "pong"], "the run has one environment"),
        (["--seed", "3"], "rollmill export has no option --seed"),
    ],
)
def test_wrong_usage_is_explained(
    run_dir: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_dir), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(run_dir.glob("agent*"))


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err

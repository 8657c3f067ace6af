"""Runs that a version before tagged unions has written, in ``old_runs/``, one of each regime and kind of algorithm."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

import rollmill
from rollmill.cli.program import main
from rollmill.envs.config import DmlabOptions
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.options import flatten
from rollmill.settings.run_config import load_config

RUNS = Path(__file__).parent / "old_runs"


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(RUNS / request.param, tmp_path / "run"))


def values_of(content: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in content.items():
        is_mapping = isinstance(value, dict) and name not in ("kwargs", "entry_encoders")
        flat |= values_of(value, f"{prefix}{name}.") if is_mapping else {prefix + name: value}  # type: ignore[arg-type]
    return flat


@pytest.mark.parametrize("name", ["async", "lockstep", "dqn", "sac"])
def test_every_setting_of_the_run_keeps_its_value(name: str) -> None:
    saved = values_of(json.loads((RUNS / name / "config.json").read_text()))
    loaded = flatten(load_config(RUNS / name))
    added = {
        "learner.algorithm",
        "admission",
        "eval_against",
        "policy",
        "model.central_value",
        "model.options",
        "learner.reward_weights",
    }
    added |= {"env.vizdoom.wad", "env.vizdoom.bots", "env.vizdoom.players", "env.vizdoom.sound"}
    added |= {"env.tasks", "task_share", "model.observe_task"}
    added |= {"replay.preload", "env.wrappers", "init_from", "init_skip", "init_optimiser", "learner.freeze"}
    added |= {"tracker", "eval_video"}
    added |= {f"env.dmlab.{field.name}" for field in fields(DmlabOptions)}
    newer = ("population.", "pbt.", "tracking.")
    assert {key for key in loaded.keys() - saved.keys() if not key.startswith(newer)} <= added
    for key in loaded.keys() & saved.keys():
        value = loaded[key]
        assert (list(value) if isinstance(value, tuple) else value) == saved[key], key


@pytest.mark.parametrize("copied", ["async", "lockstep", "dqn", "sac"], indirect=True)
def test_the_run_resumes_and_its_agent_plays(copied: Path) -> None:
    assert rollmill.evaluate(copied, episodes=1).returns
    before = read_metrics(copied)[-1]["agent_steps"]
    run = rollmill.train(run_dir=copied, resume=True, total_steps=before + 256, quiet=True, trust=True)
    assert run.agent_steps >= before + 256
    assert read_metrics(copied)[-1]["agent_steps"] == run.agent_steps
    assert flatten(load_config(copied)).items() >= {"num_envs": 4, "model.mlp_sizes": (8,)}.items()


@pytest.mark.slow
def test_the_runs_are_drawn_and_reported(tmp_path: Path) -> None:
    runs = [str(RUNS / name) for name in ("async", "lockstep", "dqn", "sac")]
    assert main(["plot", *runs, "--output", str(tmp_path / "curves.png")]) == 0
    assert main(["report", *runs, "--output", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize(
    ("copied", "message"),
    [("sac", "lag belongs to regime=lockstep; this run has regime=replay"), ("lockstep", "with another lag")],
    indirect=["copied"],
)
def test_what_a_resumed_run_cannot_change_is_refused(copied: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.train(run_dir=copied, resume=True, total_steps=10_000, quiet=True, trust=True, lag=1)


@pytest.mark.parametrize("copied", ["async"], indirect=True)
def test_a_run_that_reported_to_a_project_still_does(copied: Path) -> None:
    content = json.loads((copied / "config.json").read_text())
    assert load_config(copied).tracking.names == ("tensorboard",), "this one did not"
    (copied / "config.json").write_text(json.dumps({**content, "wandb_project": "pong"}))
    tracking = load_config(copied).tracking
    assert (tracking.names, tracking.project) == (("tensorboard", "wandb"), "pong")

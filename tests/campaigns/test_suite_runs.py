"""Suites of real runs: environments, methods, seeds, a kill, failures, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.campaigns.small import (
    SMALL,
    WORDS,
    assert_nothing_is_left,
    finished,
    has_checkpoint,
    program,
    wait_for,
    was_resumed,
)

from rollmill.campaigns.jobs import STATE_FILE, CampaignError
from rollmill.campaigns.suite_runs import suite
from rollmill.reporting.metrics import read_metrics

ENVS = ["gym/CartPole-v1", "gym/Acrobot-v1"]


@pytest.mark.slow
def test_a_suite_has_a_run_for_each_environment_and_seed_and_a_page(tmp_path: Path) -> None:
    result = suite(ENVS[:1], seeds=2, output=tmp_path / "s", quiet=True, **SMALL, total_steps=1000)
    assert result.is_complete
    assert [record.job.name for record in result.records] == ["gym_CartPole-v1-seed_1", "gym_CartPole-v1-seed_2"]
    assert [record.status for record in result.records] == ["done", "done"]
    assert result.page is not None
    assert "gym/CartPole-v1" in result.page.read_text()
    assert result.figures is not None
    assert [(run["method"], run["seed"]) for run in result.figures["runs"]] == [("preset", 1), ("preset", 2)]
    assert result.describe() == "2 of 2 runs done, 0 failed"
    rows = [read_metrics(path) for path in result.run_dirs.values()]
    # The same command keeps what is done; one with other settings is refused.
    again = suite(ENVS[:1], seeds=2, output=tmp_path / "s", quiet=True, **SMALL, total_steps=1000)
    assert [read_metrics(path) for path in again.run_dirs.values()] == rows
    with pytest.raises(CampaignError, match="total_steps is 1000 there, now 2000"):
        suite(ENVS[:1], seeds=2, output=tmp_path / "s", quiet=True, **SMALL, total_steps=2000)


@pytest.mark.slow
def test_a_killed_suite_continues_with_its_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'environments = ["gym/CartPole-v1"]\n[methods.slow]\nlearner.learning_rate = 1e-5\n'
        "[methods.fast]\nlearner.learning_rate = 1e-3\n"
    )
    folder = tmp_path / "s"
    words = ["suite", str(file), "--output", str(folder), "--quiet", "--json", *WORDS]
    words += ["--total-steps", "15000"]
    first, second = (folder / "runs" / f"gym_CartPole-v1-{name}-seed_1" for name in ("slow", "fast"))
    with program(*words):
        wait_for(lambda: has_checkpoint(second))
    state = json.loads((folder / STATE_FILE).read_text())
    assert [run["status"] for run in state["runs"]] == ["done", "running"]
    assert_nothing_is_left(state["token"])
    rows = read_metrics(first)
    code, out, err = finished(*words)
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert [(run["method"], run["status"]) for run in result["runs"]] == [("slow", "done"), ("fast", "done")]
    assert read_metrics(first) == rows
    assert read_metrics(second)[-1]["agent_steps"] >= 15_000
    assert was_resumed(second)
    page = Path(result["page"]).read_text()
    assert "slow" in page
    assert "fast" in page


BROKEN = """
import os
import gymnasium, numpy, rollmill

class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        if not os.path.exists("repaired"):
            raise ZeroDivisionError("the simulator divided by zero")
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 1.0, self.steps == 5, False, {}

rollmill.register_env("mine/fragile", Fragile)
"""


@pytest.mark.slow
def test_a_failed_run_is_reported_and_tried_again_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fragile.py").write_text(BROKEN)
    (tmp_path / "mine.toml").write_text('environments = ["mine/fragile", "gym/CartPole-v1"]\n')
    words = ["suite", "mine.toml", "--import", "fragile.py", "--output", "s", "--json", *WORDS, "--total-steps", "1000"]
    code, out, err = finished(*words)
    assert code == 1, err
    result = json.loads(out.splitlines()[-1])
    assert [run["status"] for run in result["runs"]] == ["failed", "done"]
    assert "the simulator divided by zero" in result["runs"][0]["error"]
    assert "mine_fragile-seed_1: failed after" in err
    assert "1 of 2 runs done, 1 failed" in out
    assert "mine_fragile-seed_1 has failed and is not in the report" in Path(result["page"]).read_text()
    (tmp_path / "repaired").touch()
    # Only on request.
    assert json.loads(finished(*words)[1].splitlines()[-1])["runs"][0]["status"] == "failed"
    code, out, err = finished(*words, "--retry-failed")
    assert code == 0, err
    assert [run["status"] for run in json.loads(out.splitlines()[-1])["runs"]] == ["done", "done"]


def test_errors_come_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"the suite environments has no 'gym/Nothing'; it has gym/CartPole-v1"):
        suite(ENVS, envs=["gym/Nothing"], output=tmp_path / "s")
    with pytest.raises(CampaignError, match=r"env\.name=gym/Acrobot-v1: a suite says what is trained"):
        suite(ENVS, output=tmp_path, **{"env.name": "gym/Acrobot-v1"})
    with pytest.raises(CampaignError, match="the list of environments is empty"):
        suite([], output=tmp_path)
    with pytest.raises(TypeError, match="where worker processes could import it"):
        suite([lambda: None], output=tmp_path)
    with pytest.raises(CampaignError, match="envs is empty"):
        suite(ENVS, envs=[], output=tmp_path)
    with pytest.raises(ValueError, match="unknown setting 'lr'"):
        suite(ENVS, output=tmp_path, lr=1e-3)
    with pytest.raises(ValueError, match="jobs=0"):
        suite(ENVS, jobs=0, output=tmp_path)
    with pytest.raises(ValueError, match="seeds=0"):
        suite(ENVS, seeds=0, output=tmp_path)
    folder = tmp_path / "s"
    (tmp_path / "mine.toml").write_text('environments = ["CartPole-v1"]\n[methods."a b"]\n[methods.a_b]\n')
    with pytest.raises(CampaignError, match="two runs that are called CartPole-v1-a_b-seed_1"):
        suite(str(tmp_path / "mine.toml"), output=folder)
    (tmp_path / "mine.toml").write_text('environments = ["CartPole-v1", "gym/CartPole-v1"]\n')
    with pytest.raises(CampaignError, match="has 'CartPole-v1' and 'gym/CartPole-v1', which are the same"):
        suite(str(tmp_path / "mine.toml"), output=folder)
    assert not folder.exists()

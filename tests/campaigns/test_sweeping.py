"""Sweeps of real runs: the start, the best, the page, a kill and what is left for the next session."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

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

from rollmill.api import make_config
from rollmill.campaigns.follow import RunFollower, RunLength
from rollmill.campaigns.jobs import STATE_FILE, CampaignError, open_campaign
from rollmill.campaigns.space import SpaceError
from rollmill.campaigns.study import Study, Trial
from rollmill.campaigns.sweep_result import SweepResult
from rollmill.campaigns.sweeping import _Plan, _plan, _Trials, sweep
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.run_config import load_config

pytest.importorskip("optuna")

SPACE = {"learner.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}, "learner.epochs": {"choices": [1, 4]}}
SPACE_FILE = """
[learner.learning_rate]
low = 1e-6
high = 1e-2
log = true
[learner.epochs]
choices = [1, 4]
"""


def small_sweep(folder: Path, **changes: Any) -> SweepResult:
    return sweep(
        "gym/CartPole-v1",
        SPACE,
        **{"trials": 2, "output": folder, "quiet": True, "pruner": "none", **SMALL, "total_steps": 3000, **changes},
    )


def test_a_sweep_begins_with_the_environments_arguments() -> None:
    space = {"env.kwargs.sutton_barto_reward": {"choices": [False, True]}, "learner.epochs": {"choices": [1, 4]}}

    def plan(**given: object) -> _Plan:
        return _plan("gym/CartPole-v1", space, given, algo=None, protocol=None, metric="episode_return")

    known = plan(**{"env.kwargs.sutton_barto_reward": True})
    assert known.start == {"env.kwargs.sutton_barto_reward": True, "learner.epochs": 4}
    unknown = plan()
    assert (unknown.start, unknown.outside) == (None, ("env.kwargs.sutton_barto_reward (as the environment has it)",))


@pytest.mark.parametrize("chosen", ["4x4", "1", "true", 1])
def test_a_run_gets_the_text_that_was_chosen(chosen: object) -> None:
    space = {"env.kwargs.a": {"choices": [chosen, "other"]}}
    given = {"env.kwargs.b": '"2"'}
    plan = _plan("gym/CartPole-v1", space, given, algo=None, protocol=None, metric="episode_return")
    trial = Trial(0, "running", {"env.kwargs.a": chosen}, None, (), {}, "")
    found = make_config("gym/CartPole-v1", plan.settings(trial, 1)).env.kwargs
    assert found == {"a": chosen, "b": "2"}
    assert type(found["a"]) is type(chosen)


def test_single_entries_of_a_mapping_that_is_given_as_a_whole_vary() -> None:
    space = {"env.kwargs.p": {"low": 0.0, "high": 1.0}}
    given = {"env.kwargs": {"level": "1", "p": 0.5}}
    plan = _plan("gym/CartPole-v1", space, given, algo=None, protocol=None, metric="episode_return")
    assert plan.start == {"env.kwargs.p": 0.5}
    settings = plan.settings(Trial(0, "running", {"env.kwargs.p": 0.25}, None, (), {}, ""), 1)
    assert make_config("gym/CartPole-v1", settings).env.kwargs == {"level": "1", "p": 0.25}


def test_a_run_that_ends_by_time_is_as_long_as_that(tmp_path: Path) -> None:
    plan = _plan("gym/CartPole-v1", SPACE, {"max_seconds": 60}, algo=None, protocol=None, metric="episode_return")
    with open_campaign(tmp_path, "sweep", {}) as campaign:
        options: dict[str, Any] = {"sampler": "random", "pruner": "none", "metric": "episode_return"}
        study = Study(tmp_path, plan.space, **options, direction="maximize", seed=1, jobs=1)
        source = _Trials(campaign, study, plan, trials=1, seeds=1, metric="episode_return")
        job = source.take()
        assert job is not None
        assert source.length(job) == RunLength(plan.config.total_steps, 60)


def test_what_is_searched_may_give_another_setting_its_effect() -> None:
    space: dict[str, Any] = {
        "off_policy.ou_theta": {"low": 0.1, "high": 0.5},
        "off_policy.noise_kind": {"choices": ["gaussian", "ou"]},
    }
    options: dict[str, Any] = {"algo": "ddpg", "protocol": None, "metric": "episode_return"}
    assert len(_plan("gym/Pendulum-v1", space, {}, **options).space) == 2
    del space["off_policy.noise_kind"]
    with pytest.raises(SpaceError, match=r"ou_theta=0\.1 is refused: .* without effect"):
        _plan("gym/Pendulum-v1", space, {}, **options)


def test_runs_that_were_dropped_are_not_waited_for(tmp_path: Path) -> None:
    plan = _plan("gym/CartPole-v1", SPACE, SMALL, algo=None, protocol=None, metric="episode_return")
    with open_campaign(tmp_path, "sweep", {}) as campaign:
        options: dict[str, Any] = {"sampler": "random", "pruner": "none", "metric": "episode_return"}
        study = Study(tmp_path, plan.space, **options, direction="maximize", seed=1, jobs=1)
        source = _Trials(campaign, study, plan, trials=2, seeds=3, metric="episode_return")
        assert source.total == 6
        job = source.take()
        assert job is not None
        source.ended(campaign.update(job.name, status="failed", error="too bad"))
        assert [trial.state for trial in study.trials] == ["failed"]
        assert source.total == 4


def test_a_metric_that_is_refused_is_not_remembered(tmp_path: Path) -> None:
    may_change = ("metric",)
    with open_campaign(tmp_path, "sweep", {"metric": "a"}, may_change) as campaign:
        assert not campaign.is_changed
    with open_campaign(tmp_path, "sweep", {"metric": "b"}, may_change) as campaign:
        assert campaign.is_changed
    with open_campaign(tmp_path, "sweep", {"metric": "a"}, may_change) as campaign:
        assert not campaign.is_changed


@pytest.mark.slow
def test_a_sweep_says_why_no_trial_has_the_presets_values(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = {"learner.epochs": {"choices": [1]}}
    result = sweep("gym/CartPole-v1", space, trials=3, output=tmp_path / "s", pruner="none", **SMALL, total_steps=3000)
    assert result.start is None
    messages = capfd.readouterr().err
    assert "because the space does not contain learner.epochs=4" in messages
    assert "the sweep ends after 1 trial(s), because the space has no more different points" in messages
    assert (result.is_complete, len(result.trials)) == (True, 1)


def test_a_sweep_begins_with_the_start_and_ends_with_a_page(tmp_path: Path) -> None:
    result = small_sweep(tmp_path / "s", trials=2, learning_rate=1e-6)
    assert result.is_complete
    first, second = result.trials
    assert first.settings == {"learner.learning_rate": 1e-6, "learner.epochs": 4}
    assert result.start == first
    assert second.state == "complete"
    for trial in (first, second):
        (run_dir,) = result.run_dirs[trial.number]
        assert trial.value == read_metrics(run_dir)[-1]["episode_return"]
        config = load_config(run_dir)
        assert config.optimiser.learning_rate == trial.settings["learner.learning_rate"]
    assert result.best == max(result.trials, key=lambda trial: trial.value or 0.0)
    assert result.page is not None
    page = result.page.read_text()
    assert result.command.startswith("rollmill train gym/CartPole-v1 --")
    assert "--learner.learning-rate" in page
    figures = json.loads((result.page.parent / "report.json").read_text())
    assert figures == json.loads(json.dumps(result.to_dict()))
    # Nothing is left to do.
    assert small_sweep(tmp_path / "s", learning_rate=1e-6).trials == result.trials
    with pytest.raises(CampaignError, match=r"holds another sweep .*total_steps.* is 3000|'total_steps': 3000"):
        small_sweep(tmp_path / "s", learning_rate=1e-6, total_steps=4000)


@pytest.mark.slow
def test_a_killed_sweep_continues_with_its_runs(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text(SPACE_FILE)
    folder = tmp_path / "s"
    words = ["sweep", "gym/CartPole-v1", "--space", str(space), "--output", str(folder), "--quiet", "--json"]
    words += [*WORDS, "--learner.learning-rate", "1e-6", "--trials", "2", "--pruner", "none"]
    words += ["--total-steps", "20000"]
    second = folder / "runs" / "trial_0001-0"
    with program(*words):
        wait_for(lambda: has_checkpoint(second))
    state = json.loads((folder / STATE_FILE).read_text())
    assert [run["status"] for run in state["runs"]] == ["done", "running"]
    assert_nothing_is_left(state["token"])
    first_rows = read_metrics(folder / "runs" / "trial_0000-0")
    steps_before = read_metrics(second)[-1]["agent_steps"]
    code, out, err = finished(*words)
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert [trial["state"] for trial in result["trials"]] == ["complete", "complete"]
    assert result["start"]["settings"] == {"learner.learning_rate": 1e-6, "learner.epochs": 4}
    assert read_metrics(folder / "runs" / "trial_0000-0") == first_rows
    assert read_metrics(second)[-1]["agent_steps"] >= 20_000 > steps_before
    assert was_resumed(second)
    assert Path(result["page"]).exists()


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_continue(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text(SPACE_FILE)
    folder = tmp_path / "s"
    words = ["sweep", "gym/CartPole-v1", "--space", str(space), "--output", str(folder), *WORDS]
    words += ["--total-steps", "1e9", "--trials", "2"]
    with program(*words) as process:
        wait_for(lambda: has_checkpoint(folder / "runs" / "trial_0000-0"))
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "no trial has ended" in out
    assert f"the same command continues in {folder}" in err
    state = json.loads((folder / STATE_FILE).read_text())
    assert [run["status"] for run in state["runs"]] == ["waiting"]
    assert_nothing_is_left(state["token"])


@pytest.mark.slow
def test_more_trials_may_be_asked_for(tmp_path: Path) -> None:
    (first,) = small_sweep(tmp_path / "s", trials=1).trials
    longer = small_sweep(tmp_path / "s", trials=2)
    assert longer.trials[0] == first
    assert [trial.state for trial in longer.trials] == ["complete", "complete"]


@pytest.mark.slow
def test_seeds_are_runs_of_a_trial(tmp_path: Path) -> None:
    result = small_sweep(tmp_path / "s", trials=2, seeds=2, jobs=2, seed=7)
    assert len(result.trials) == 2
    for trial in result.trials:
        runs = result.run_dirs[trial.number]
        assert [json.loads((run / "config.json").read_text())["seed"] for run in runs] == [7, 8]
        assert trial.value == pytest.approx(sum(trial.values) / 2)
        assert len(trial.values) == 2


@pytest.mark.slow
def test_a_sweep_without_the_metric_stops_after_its_first_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CampaignError, match="trial_0000-0 has ended without it"):
        small_sweep(tmp_path / "s", metric="env/nothing")
    run_dir = tmp_path / "s" / "runs" / "trial_0000-0"
    assert [path.name for path in run_dir.parent.iterdir()] == ["trial_0000-0"]
    rows = read_metrics(run_dir)
    unchanged = small_sweep(tmp_path / "s", metric="env/nothing", trials=1)
    (trial,) = unchanged.trials
    assert trial.state == "failed"
    assert "trial_0000-0 has no value of env/nothing" in trial.error
    assert unchanged.page is None
    assert "none has a value of env/nothing" in unchanged.describe()
    with pytest.raises(CampaignError, match="env/another"):
        small_sweep(tmp_path / "s", metric="env/another")
    capfd.readouterr()
    longest = small_sweep(tmp_path / "s", metric="episode_length", direction="minimize", quiet=False)
    assert "metric=episode_length, direction=minimize: 1 finished run(s) are read again" in capfd.readouterr().err
    assert [trial.state for trial in longest.trials] == ["complete", "complete"]
    assert longest.trials[0].settings == trial.settings
    assert longest.trials[0].value == rows[-1]["episode_length"]
    assert read_metrics(run_dir) == rows
    back = small_sweep(tmp_path / "s")
    assert back.trials[0].value == rows[-1]["episode_return"]
    assert len(back.trials) == 2


@pytest.mark.slow
def test_a_failed_trial_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="ended without it"):
        small_sweep(tmp_path / "s", metric="env/nothing", trials=1)
    (failed,) = small_sweep(tmp_path / "s", metric="env/nothing", trials=1).trials
    again = small_sweep(tmp_path / "s", metric="env/nothing", trials=1, retry_failed=True)
    assert failed.state == "failed"
    assert [trial.number for trial in again.trials] == [1]


@pytest.mark.slow
def test_a_wrong_setting_of_all_trials_can_be_corrected(tmp_path: Path) -> None:
    (failed,) = small_sweep(tmp_path / "s", trials=1, **{"env.kwargs": {"no_such_argument": 1}}).trials
    assert failed.state == "failed"
    with pytest.raises(CampaignError, match=r"another sweep .*no_such_argument"):
        small_sweep(tmp_path / "s", trials=1)
    result = small_sweep(tmp_path / "s", trials=1, retry_failed=True)
    assert result.best is not None
    with pytest.raises(CampaignError, match=r"another sweep .*no_such_argument"):
        small_sweep(tmp_path / "s", trials=1, retry_failed=True, **{"env.kwargs": {"no_such_argument": 1}})


@pytest.mark.slow
def test_the_pruner_ends_a_run_of_a_worse_trial(tmp_path: Path) -> None:
    result = sweep(
        "gym/CartPole-v1",
        {"learner.learning_rate": {"choices": [1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3, 1e-9]}},
        output=tmp_path / "s",
        quiet=True,
        sampler="grid",
        **{**SMALL, "total_steps": 20_000},
    )
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert 1e-9 in [trial.settings["learner.learning_rate"] for trial in pruned]
    for trial in pruned:
        assert read_metrics(result.run_dirs[trial.number][0])[-1]["agent_steps"] < 20_000
        assert trial.value is not None


def test_the_pruner_sees_an_evaluation_when_it_has_come(tmp_path: Path) -> None:
    metric = "evaluation/mean_return"
    fixed = {"total_steps": 100, "eval_every": 10}
    plan = _plan("gym/CartPole-v1", SPACE, fixed, algo=None, protocol=None, metric=metric)
    options: dict[str, Any] = {"sampler": "random", "pruner": "none", "metric": metric}
    study = Study(tmp_path, plan.space, direction="maximize", seed=1, jobs=1, **options)
    with open_campaign(tmp_path, "sweep", {}) as campaign:
        source = _Trials(campaign, study, plan, trials=1, seeds=1, metric=metric)
        job = source.take()
        assert job is not None
        run_dir = campaign.run_dir(job.name)
        run_dir.mkdir()
        (run_dir / "metrics.jsonl").write_text('{"agent_steps": 50}\n')
        (run_dir / "evaluations.jsonl").write_text('{"agent_steps": 10, "mean_return": 1.0}')
        follower = RunFollower(run_dir)
        follower.update()
        source._report(0, follower, source.length(job))
        assert study.trials[0].curve == {2: 1.0}
        (run_dir / "evaluations.jsonl").write_text('{"agent_steps": 20, "mean_return": 2.0}')
        (run_dir / "metrics.jsonl").write_text('{"agent_steps": 100}\n')
        source.ended(campaign.update(job.name, status="done"))
    (trial,) = study.trials
    assert (trial.state, trial.value) == ("complete", 2.0)
    assert trial.curve == {2: 1.0, **dict.fromkeys(range(4, 21), 2.0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials=0: give an integer of at least 1"),
        ({"sampler": "best"}, "sampler='best': choose one of 'tpe', 'random', 'cmaes', 'grid'"),
        ({"pruner": "best"}, "pruner='best': choose one of"),
        ({"direction": "up"}, "direction='up': choose one of 'maximize', 'minimize'"),
        ({"metric": "episode_retrun"}, "no key of metrics.jsonl: did you mean episode_return"),
        ({"metric": "evaluation/mean_return"}, "makes no evaluations; give eval_every"),
        ({"metric": "evaluation/returns", "eval_every": 1000}, "evaluations have evaluation/"),
        ({"learning_rate": 1.0}, r"learner\.learning_rate='?1\.0'? is the value to start from, outside of the space"),
        ({"sampler": "grid"}, r"the grid needs a few values of learner\.learning_rate"),
        ({"lr": 1.0}, "unknown setting 'lr'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        small_sweep(tmp_path / "s", **changes)
    assert not (tmp_path / "s").exists()


def test_the_seed_is_no_setting_to_search(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="give seeds for several runs"):
        sweep("gym/CartPole-v1", {"seed": {"low": 1, "high": 3}}, output=tmp_path)
    with pytest.raises(SpaceError, match="unknown setting"):
        sweep("gym/CartPole-v1", {"lr": {"low": 1, "high": 3}}, output=tmp_path)

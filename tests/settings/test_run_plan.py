"""Plans of new and of resumed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.signatures import Verdict
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.settings.run_plan import RunPlan, plan_run


def _plan(preset: str | None, given: dict[str, object], run_dir: Path | None, *, resume: bool = False) -> RunPlan:
    return plan_run(preset, given, run_dir, resume=resume, algo=None, protocol=None, ranks=Ranks(), trust=False)


def test_a_new_run_has_a_directory_and_the_settings_as_given(tmp_path: Path) -> None:
    plan = _plan("gym/CartPole-v1", {"total_steps": "1000"}, tmp_path / "new")
    assert plan.directory.is_dir()
    assert not plan.resume
    assert plan.settings.total_steps == 1000
    # "auto" stays, because the run may be resumed on another machine.
    assert plan.settings.compute.device == "auto"


def test_a_plan_reaches_other_ranks_as_it_was(tmp_path: Path) -> None:
    plan = _plan("gym/CartPole-v1", {"seed": 3}, tmp_path)
    received, verdict = RunPlan.unpack(plan.pack())
    assert received == plan
    assert verdict is Verdict.VALID


def test_a_resumed_run_keeps_its_settings(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", {"seed": 3, "learner.epochs": 2}))
    plan = _plan(None, {"total_steps": 7_000}, tmp_path, resume=True)
    assert plan.resume
    assert (plan.settings.seed, plan.settings.algorithm.epochs, plan.settings.total_steps) == (3, 2, 7_000)


def test_modules_that_are_imported_on_a_resume_do_not_replace_those_of_the_run(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", {"env.imports": ("json",)}))
    plan = _plan(None, {"imports": "csv,json"}, tmp_path, resume=True)
    assert plan.settings.env.imports == ("json", "csv")


def test_a_plan_that_cannot_be_made_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no preset was given"):
        _plan(None, {}, tmp_path / "a")
    with pytest.raises(ValueError, match="num_envs"):
        _plan("gym/CartPole-v1", {"num_envs": 0}, tmp_path / "a")
    with pytest.raises(RunDirectoryError, match="resume without run_dir"):
        _plan(None, {}, None, resume=True)
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1"))
    with pytest.raises(RunDirectoryError, match="is a run of 'gym/CartPole-v1', not of 'gym/Acrobot-v1'"):
        _plan("gym/Acrobot-v1", {}, tmp_path, resume=True)
    assert not (tmp_path / "a").exists()

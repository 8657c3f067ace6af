"""The checkpoint that a run resumes from, with all its real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.runtime.events import ProcessFailed
from rollmill.settings.run_config import write_config
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def checkpoints(run_dir: Path) -> CheckpointStore:
    return CheckpointStore(run_dir / "checkpoints", CheckpointConfig())


@pytest.mark.slow
def test_a_run_of_months_and_a_checkpoint_of_another_network(tmp_path: Path) -> None:
    from faulty_envs import TINY

    run = rollmill.train("test/walk", run_dir=tmp_path / "run", quiet=True, **TINY, total_steps=500)
    store = checkpoints(run.dir)
    state = store.load_latest().state
    many = 2**31 + 5
    store.save({**state, "counters": {**state["counters"], "agent_steps": many}}, many)
    smaller = {name: value[..., :1] if value.dim() else value for name, value in state["model"].items()}
    foreign = store.save({**state, "model": smaller}, many)
    again = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=many + 500)
    assert again.agent_steps >= many + 500
    log = (run.dir / "run.log").read_text()
    assert f"{foreign.name} does not fit this run: it belongs to another network" in log


def test_a_run_that_has_all_its_steps_is_left_as_it_is(tmp_path: Path) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"total_steps": 50})
    write_config(tmp_path, config)
    checkpoints(tmp_path).save({"model": {}}, 70)
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    run = rollmill.train(run_dir=tmp_path, resume=True, quiet=True)
    assert (run.agent_steps, run.ended_by, run.episode_return) == (70, "total_steps", None)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "CartPole-v1"])
@pytest.mark.parametrize("again", ["gym/CartPole-v1", "CartPole-v1"])
def test_both_names_of_a_gymnasium_environment_are_one_preset(tmp_path: Path, name: str, again: str) -> None:
    write_config(tmp_path, rollmill.make_config(name, {"total_steps": 50}))
    checkpoints(tmp_path).save({"model": {}}, 70)
    assert rollmill.train(again, run_dir=tmp_path, resume=True, quiet=True).agent_steps == 70


def test_no_checkpoint_that_fits_names_the_file_and_what_does_not_fit(tmp_path: Path) -> None:
    from faulty_envs import TINY

    write_config(tmp_path, rollmill.make_config("test/walk", TINY).resolved())
    foreign = checkpoints(tmp_path).save({"model": {}}, 7)
    with pytest.raises(ProcessFailed, match=f"{foreign.name} does not fit this run: it lacks counters"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True)


def test_settings_without_effect_are_refused_on_a_resume_too(tmp_path: Path) -> None:
    settings = {"total_steps": 50, "learner.schedule": "0:3e-4,1e6:1e-4", "env.imports": ("json",)}
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", settings))
    checkpoints(tmp_path).save({"model": {}}, 70)
    for changes, message in (
        ({"learning_rate": 1e-5}, "whose points are learning rates"),
        ({"eval_video": 1}, "eval_video: without effect"),
        ({"init_from": "runs/other"}, "cannot be resumed with another init_from"),
    ):
        with pytest.raises(ValueError, match=message):
            rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **changes)

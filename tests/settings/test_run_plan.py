"""Plans of new and of resumed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.evaluation.players import PLAYERS
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.signatures import Verdict
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.settings.run_plan import RunPlan, plan_run
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore


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
    plan = _plan("gym/CartPole-v1", {"seed": 3, "batch_size": 64}, tmp_path)
    assert plan.notes
    received, verdict = RunPlan.unpack(plan.pack())
    assert received == plan
    assert verdict is Verdict.VALID


def test_a_resumed_run_keeps_its_settings(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", {"seed": 3, "learner.epochs": 2}))
    plan = _plan(None, {"total_steps": 7_000}, tmp_path, resume=True)
    assert plan.resume
    assert (plan.settings.seed, plan.settings.algorithm.epochs, plan.settings.total_steps) == (3, 2, 7_000)


def test_a_plan_notes_that_the_short_name_batch_size_is_no_minibatch(tmp_path: Path) -> None:
    said = (
        "learner.batch_size=64 is the whole batch, in 4 minibatches of 16; in Stable-Baselines3 and Sample Factory "
        "batch_size is a minibatch. Use learner.batch_size=256 for minibatches of 64; the complete name "
        "is taken without this note.",
    )
    assert _plan("gym/CartPole-v1", {"batch_size": "64"}, tmp_path / "new").notes == said
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1"))
    assert _plan(None, {"batch_size": 64}, tmp_path, resume=True).notes == said


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"learner.batch_size": 64},
        {"batch_size": 64, "minibatches": 2},
        {"batch_size": 32, "learner.minibatches": 1},
        {"regime": "lockstep", "num_envs": 2, "rollout_length": 32, "batch_size": 64},
    ],
)
def test_a_plan_notes_nothing_where_the_batch_is_meant(given: dict[str, object], tmp_path: Path) -> None:
    assert _plan("gym/CartPole-v1", given, tmp_path).notes == ()


def test_batches_of_a_replay_are_those_of_other_libraries(tmp_path: Path) -> None:
    replay = {"regime": "replay", "off_policy.algorithm": "dqn", "batch_size": 64}
    assert _plan("gym/CartPole-v1", replay, tmp_path).notes == ()


def test_settings_of_the_only_policy_are_those_of_the_run(tmp_path: Path) -> None:
    own = {"policy.hunter.model.mlp_sizes": (16,), "policy.hunter.learner.epochs": 3, "policy.hunter.agents": "agent_*"}
    given = {"population.policies": "hunter", "population.guests": "prey=random", "policy.prey.agents": "adversary_*"}
    settings = _plan("mpe/simple_tag_v3", {**given, **own}, tmp_path).settings
    assert settings.model.mlp_sizes == (16,)
    assert settings.algorithm.epochs == 3
    assert settings.policy == {"hunter.agents": "agent_*", "prey.agents": "adversary_*"}
    assert settings.policies[0].model == settings.model


def test_guests_and_opponents_are_named_so_that_other_folders_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PLAYERS, "factories", dict(PLAYERS.factories))
    rollmill.register_player("expert", lambda: lambda _, __: 0)
    for name in ("old", "random", "lr=1", "lr=2", "expert"):
        (tmp_path / name).mkdir()
    guests = "old,prey=old,random,other=random,far=lr=1,lr=2,expert"
    given = {"population.guests": guests, "eval_against": "old,expert,random", "eval_every": 1000}
    plan = _plan("envpool/ConnectFour-v1", given, tmp_path / "run")
    found = plan.settings.population
    assert found.guests[:4] == (f"{tmp_path}/old", f"prey={tmp_path}/old", "random", "other=random")
    assert found.guests[4:] == (f"far={tmp_path}/lr=1", f"{tmp_path}/lr=2", "expert")
    assert [name for name, _ in found.named_guests] == ["old", "prey", "random", "other", "far", "lr_2", "expert"]
    assert plan.settings.eval_against == (f"{tmp_path}/old", "expert", "random")
    # A process that resumes the run may not have registered the player yet.
    write_config(tmp_path / "run", plan.settings)
    PLAYERS.factories.pop("expert")
    resumed = _plan(None, {}, tmp_path / "run", resume=True).settings
    assert (resumed.population, resumed.eval_against) == (found, plan.settings.eval_against)
    again = _plan(None, {"eval_against": "old"}, tmp_path / "run", resume=True).settings
    assert again.eval_against == (f"{tmp_path}/old",)


def test_a_folder_without_the_state_of_a_learner_is_not_resumed(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", {"total_steps": 256}))
    CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()).save({}, 256, is_end=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunDirectoryError, match=f"not the state to resume, .* --init-from {tmp_path}"):
        _plan(None, {"total_steps": 512}, tmp_path, resume=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert _plan(None, {}, tmp_path, resume=True).resume  # It is complete.


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

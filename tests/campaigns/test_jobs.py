"""The folder of a campaign: what is kept, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.campaigns.jobs import (
    STATE_FILE,
    CampaignError,
    Job,
    Record,
    expanded,
    job_name,
    open_campaign,
    runs_of,
    trial_run_name,
)
from rollmill.envs.config import EnvConfig
from rollmill.settings.config import Config
from rollmill.settings.run_config import write_config
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

ONE = Job("one", "gym/CartPole-v1", {"total_steps": 100, "model.mlp_sizes": (8, 8)}, algo="ppo")
TWO = Job("two", "gym/Acrobot-v1", {"seed": 2})


def write_run(run_dir: Path) -> None:
    """Write as much of a run as makes it resumable."""
    write_config(run_dir, Config(env=EnvConfig(name="gym/CartPole-v1")))
    CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).save({"step": 1}, 1)


def test_a_copy_of_a_folder_has_runs_of_its_own(tmp_path: Path) -> None:
    with open_campaign(tmp_path / "a", "suite", {}) as original:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with open_campaign(tmp_path / "b", "suite", {}) as copied:
            assert copied.token != original.token
    (tmp_path / "a").rename(tmp_path / "c")
    with open_campaign(tmp_path / "c", "suite", {}) as moved:
        assert moved.token == original.token


def test_records_outlive_the_session(tmp_path: Path) -> None:
    with open_campaign(tmp_path / "c", "suite", {"suite": "mine"}) as campaign:
        campaign.add([ONE, TWO])
        campaign.update("one", status="done", seconds=2.5)
        campaign.update("two", status="running")
        token = campaign.token
    with open_campaign(tmp_path / "c", "suite", {"suite": "mine"}) as campaign:
        assert campaign.token == token
        campaign.add([ONE, TWO])
        first, second = campaign.records.values()
    assert first == Record(replace(ONE, settings={"total_steps": 100, "model.mlp_sizes": [8, 8]}), "done", "", 2.5)
    assert second.status == "waiting"  # Whoever ran it is gone.


def test_a_run_that_has_begun_keeps_its_settings(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "suite", {}) as campaign:
        campaign.add([ONE])
        longer = replace(ONE, settings={**ONE.settings, "total_steps": 200})
        campaign.add([longer])  # Nothing was run yet.
        assert campaign.records["one"].job.settings["total_steps"] == 200
        campaign.update("one", status="failed", error="too short")
        with pytest.raises(CampaignError, match=r"total_steps is 200 there, now 100.*--output"):
            campaign.add([ONE])
        campaign.update("one", status="waiting", error="")  # It was interrupted.
        campaign.run_dir("one").mkdir(parents=True)
        with pytest.raises(CampaignError, match="total_steps is 200 there, now 100"):
            campaign.add([ONE])


def test_a_run_that_failed_before_its_first_checkpoint_may_be_corrected(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "suite", {}) as campaign:
        campaign.add([ONE, TWO])
        for name in ("one", "two"):
            campaign.run_dir(name).mkdir(parents=True)
            campaign.update(name, status="failed", error="a misspelt setting")
        corrected = replace(ONE, settings={**ONE.settings, "total_steps": 200})
        campaign.add([corrected], retry_failed=True)
        assert campaign.records["one"] == Record(replace(corrected, settings=campaign.records["one"].job.settings))
        assert campaign.records["one"].job.settings["total_steps"] == 200
        assert campaign.records["two"].status == "failed"
        campaign.update("one", status="failed", error="later")
        write_run(campaign.run_dir("one"))
        campaign.add([corrected], retry_failed=True)
        assert campaign.records["one"].status == "waiting"
        campaign.update("two", status="waiting", error="")  # Ended because others had failed.
        campaign.add([replace(TWO, settings={"seed": 3})], retry_failed=True)
        assert campaign.records["two"].job.settings == {"seed": 3}
        campaign.update("one", status="failed", error="later")
        with pytest.raises(CampaignError, match="total_steps is 200 there, now 100"):
            campaign.add([ONE], retry_failed=True)


def test_a_definition_may_be_corrected_while_there_is_no_result(tmp_path: Path) -> None:
    def opened(settings: str) -> None:
        with open_campaign(tmp_path, "sweep", {"settings": settings}, may_correct=("settings",)) as campaign:
            assert not campaign.is_changed
            campaign.add([ONE])

    opened("misspelt")
    opened("correct")
    with open_campaign(tmp_path, "sweep", {"settings": "correct"}) as campaign:
        campaign.update("one", status="done")
    with pytest.raises(CampaignError, match="settings is 'correct' there, now 'other'"):
        opened("other")


def test_what_judges_runs_may_change_and_pruned_runs_continue_then(tmp_path: Path) -> None:
    def records(metric: str, seeds: int = 1) -> tuple[bool, list[str]]:
        definition = {"metric": metric, "seeds": seeds}
        with open_campaign(tmp_path, "sweep", definition, may_change=("metric",)) as campaign:
            campaign.add([ONE, TWO])
            found = campaign.is_changed, [record.status for record in campaign.records.values()]
            campaign.update("one", status="pruned")
            campaign.update("two", status="failed")
            return found

    assert records("episode_return") == (False, ["waiting", "waiting"])
    assert records("episode_return") == (False, ["pruned", "failed"])
    assert records("episode_length") == (True, ["waiting", "failed"])
    assert records("episode_length") == (False, ["pruned", "failed"])
    with pytest.raises(CampaignError, match="seeds is 1 there, now 2"):
        records("episode_return", seeds=2)


def test_another_campaign_in_the_folder_is_refused(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "sweep", {"metric": "episode_return", "seeds": 1}):
        pass
    with (
        pytest.raises(CampaignError, match=r"holds another sweep .seeds is 1 there, now 2"),
        open_campaign(tmp_path, "sweep", {"metric": "episode_return", "seeds": 2}),
    ):
        pass
    with (
        pytest.raises(CampaignError, match="a sweep, not a suite"),
        open_campaign(tmp_path, "suite", {"metric": "episode_return", "seeds": 1}),
    ):
        pass


def test_two_processes_cannot_hold_one_folder(tmp_path: Path) -> None:
    with (
        open_campaign(tmp_path, "suite", {}),
        pytest.raises(CampaignError, match=r"another process is training in .*--output"),
        open_campaign(tmp_path, "suite", {}),
    ):
        pass


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text('{"kind": "suite"')
    with pytest.raises(CampaignError, match=r"campaign\.json cannot be read"), open_campaign(tmp_path, "suite", {}):
        pass
    with pytest.raises(CampaignError, match=r"campaign\.json cannot be read"):
        runs_of(tmp_path)
    (tmp_path / "file").touch()
    with (
        pytest.raises(CampaignError, match="a file with this name exists"),
        open_campaign(tmp_path / "file", "suite", {}),
    ):
        pass


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "suite", {}) as campaign:
        (tmp_path / "campaign.new").mkdir()
        with pytest.raises(CampaignError, match=r"campaign\.json cannot be written \(Is a directory\): free space or"):
            campaign.add([ONE])


def test_a_status_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "suite", {}) as campaign:
        campaign.add([ONE])
    content = json.loads((tmp_path / STATE_FILE).read_text())
    content["runs"][0]["status"] = "lost"
    (tmp_path / STATE_FILE).write_text(json.dumps(content))
    with pytest.raises(CampaignError, match="status 'lost' is unknown"), open_campaign(tmp_path, "suite", {}):
        pass


def test_the_folder_stands_for_its_finished_runs(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with open_campaign(folder, "suite", {}) as campaign:
        campaign.add([ONE, TWO])
        with pytest.raises(CampaignError, match="no finished run yet"):
            expanded([str(folder)])
        campaign.update("two", status="done")
    assert runs_of(folder) == {folder / "runs" / "two": ""}
    assert runs_of(tmp_path) is None
    assert expanded([str(folder), f"mine={folder}", f"other={tmp_path}", "x=none"]) == [
        str(folder / "runs" / "two"),
        f"mine={folder / 'runs' / 'two'}",
        f"other={tmp_path}",
        "x=none",
    ]


def test_methods_of_a_suite_stay_apart(tmp_path: Path) -> None:
    folder = tmp_path / "c=1"
    with open_campaign(folder, "suite", {}) as campaign:
        campaign.add([replace(ONE, method="ppo"), replace(TWO, method="small net")])
        for name in ("one", "two"):
            campaign.update(name, status="done")
    assert expanded([f"new={folder}"]) == [f"new ppo={folder}/runs/one", f"new small net={folder}/runs/two"]
    assert expanded([str(folder)]) == [f"ppo={folder}/runs/one", f"small net={folder}/runs/two"]
    assert expanded([str(folder), "x"]) == [f"c_1 ppo={folder}/runs/one", f"c_1 small net={folder}/runs/two", "x"]


def test_each_trial_of_a_sweep_is_a_method(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with open_campaign(folder, "sweep", {}) as campaign:
        for number, place in ((0, 0), (0, 1), (12, 0)):
            job = replace(TWO, name=trial_run_name(number, place))
            campaign.add([job])
            campaign.update(job.name, status="done")
    runs = [f"{folder}/runs/{name}" for name in ("trial_0000-0", "trial_0000-1", "trial_0012-0")]
    trials = [("trial_0000", runs[0]), ("trial_0000", runs[1]), ("trial_0012", runs[2])]
    assert expanded([str(folder)]) == [f"{name}={run}" for name, run in trials]
    assert expanded([f"mine={folder}"]) == [f"mine {name}={run}" for name, run in trials]
    assert expanded([str(folder), "x=none"]) == [*(f"c {name}={run}" for name, run in trials), "x=none"]


def test_names_are_names_of_folders() -> None:
    assert job_name("atari_pong", "", "seed_1") == "atari_pong-seed_1"
    assert job_name("module:My Env", "../x") == "module_My_Env-.._x"
    assert len(job_name("x" * 1000)) == 120
    assert job_name("x" * 1000, "seed_1") == "x" * 113 + "-seed_1"
    assert job_name("pong", "m" * 1000, "seed_1") == "pong-" + "m" * 108 + "-seed_1"

"""The loop of a campaign, with runs whose ends are known."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.campaigns.small import SMALL

from rollmill.campaigns.driver import run_all
from rollmill.campaigns.follow import RunLength
from rollmill.campaigns.jobs import CampaignError, CampaignFailedError, Job, Record, open_campaign
from rollmill.campaigns.run_queue import RunningJob


class Listed:
    """A list of runs; those named are hopeless."""

    def __init__(self, jobs: list[Job], hopeless: tuple[str, ...] = ()) -> None:
        self.left = list(jobs)
        self.listed = [job.name for job in jobs]
        self.total = len(jobs)
        self.hopeless = hopeless
        self.ends: list[tuple[str, str]] = []

    @property
    def names(self) -> list[str]:
        return self.listed

    def take(self) -> Job | None:
        return self.left.pop(0) if self.left else None

    def length(self, job: Job) -> RunLength:
        return RunLength(int(job.settings.get("total_steps", 1)))

    def is_hopeless(self, running: RunningJob) -> bool:
        return running.job.name in self.hopeless

    def ended(self, record: Record) -> None:
        self.ends.append((record.job.name, record.status))


def test_a_failure_does_not_stop_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = Job("broken", "gym/NoSuchEnvironment-v1", {})
    endless = Job("endless", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})
    source = Listed([broken, endless], hopeless=("endless",))
    with open_campaign(tmp_path, "suite", {}) as campaign:
        campaign.add([broken, endless])
        assert run_all(campaign, source, jobs=1, title="test", quiet=False)
        statuses = {name: record.status for name, record in campaign.records.items()}
    assert statuses == {"broken": "failed", "endless": "pruned"}
    assert source.ends == [("broken", "failed"), ("endless", "pruned")]
    shown = capfd.readouterr().err
    assert "broken: failed after" in shown
    assert "endless: pruned after" in shown


@pytest.mark.parametrize(
    "preset", ["gym/NoSuchEnvironment-v1", pytest.param("no_such_game:NoSuchEnv", marks=pytest.mark.slow)]
)
def test_runs_that_all_fail_alike_end_the_campaign(
    tmp_path: Path, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second one fails in a process of the run, whose number differs from run to run.
    code = "import gymnasium\nclass NoSuchEnv(gymnasium.Env):\n    def __init__(self): raise KeyError('NoSuchEnv')\n"
    (tmp_path / "no_such_game.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs = [Job(f"broken_{place}", preset, {"seed": place}) for place in range(4)]
    with open_campaign(tmp_path / "campaign", "suite", {}) as campaign:
        campaign.add(jobs)
        told = r"(?s)first 3 runs .*failed in the same way: .*NoSuchEnv.*\n.*--retry"
        with pytest.raises(CampaignError, match=told) as raised:
            run_all(campaign, Listed(jobs), jobs=1, title="test", quiet=True)
        assert isinstance(raised.value, CampaignFailedError)
        statuses = [campaign.records[job.name].status for job in jobs]
    assert statuses == ["failed", "failed", "failed", "waiting"]


def test_a_signal_ends_the_campaign_and_its_runs_wait(tmp_path: Path) -> None:
    endless = Job("endless", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})

    def interrupt() -> None:
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    with open_campaign(tmp_path, "suite", {}) as campaign:
        campaign.add([endless])
        thread = threading.Thread(target=interrupt)
        thread.start()
        assert not run_all(campaign, Listed([endless]), jobs=1, title="test", quiet=True)
        thread.join()
        assert campaign.records["endless"].status == "waiting"


def test_without_anything_to_run_it_is_complete(tmp_path: Path) -> None:
    with open_campaign(tmp_path, "suite", {}) as campaign:
        assert run_all(campaign, Listed([]), jobs=2, title="test", quiet=True)

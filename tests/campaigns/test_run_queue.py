"""Runs as processes: cores, ends, errors, and interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.campaigns.small import SMALL, assert_nothing_is_left, has_checkpoint, wait_for, was_resumed

from rollmill.campaigns.follow import RunFollower
from rollmill.campaigns.jobs import Campaign, CampaignError, Job, Record, open_campaign
from rollmill.campaigns.run_queue import RunningJob, RunQueue, shares_of
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.affinity import usable_cpus


def test_cores_are_divided() -> None:
    assert shares_of([0, 1, 2, 3, 6], 2) == [(0, 1), (2, 3, 6)]
    assert shares_of([0, 1], 1) == [(0, 1)]
    assert shares_of([4, 5], 3) == [(4,), (5,), (4,)]


def until_one_ends(queue: RunQueue, timeout_s: float = 400.0) -> Record:
    deadline = time.monotonic() + timeout_s
    while not (ended := queue.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ended[0]


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    with open_campaign(tmp_path / "c", "suite", {}) as campaign:
        yield campaign


def test_a_run_is_the_ordinary_command_on_its_share_of_the_cores(campaign: Campaign) -> None:
    job = Job("one", "gym/CartPole-v1", {**SMALL, "total_steps": 1000, "seed": 3})
    campaign.add([job])
    cpus = usable_cpus()
    with RunQueue(campaign, 1, cpus[:1]) as queue:
        assert queue.has_room
        queue.start(job)
        (running,) = queue.running
        assert os.sched_getaffinity(running.process.pid) == {cpus[0]}
        assert os.sched_getaffinity(0) == {*cpus}
        assert not queue.has_room
        record = until_one_ends(queue)
    assert (record.status, record.error) == ("done", "")
    assert record.seconds > 0
    config = json.loads((campaign.run_dir("one") / "config.json").read_text())
    assert (config["seed"], config["total_steps"]) == (3, 1000)
    assert read_metrics(campaign.run_dir("one"))[-1]["agent_steps"] >= 1000
    assert_nothing_is_left(campaign.token)


def test_a_failed_run_has_its_error(campaign: Campaign) -> None:
    job = Job("one", "gym/NoSuchEnvironment-v1", {"seed": 3})
    campaign.add([job])
    with RunQueue(campaign, 1) as queue:
        queue.start(job)
        record = until_one_ends(queue)
    assert record.status == "failed"
    assert "NoSuchEnvironment" in record.error
    assert not record.error.startswith("rollmill: ")


def test_the_error_of_an_earlier_session_is_not_taken_for_the_last_one(campaign: Campaign) -> None:
    job = Job("one", "gym/CartPole-v1", dict(SMALL))
    campaign.add([job])
    campaign.log_file("one").parent.mkdir(parents=True, exist_ok=True)
    campaign.log_file("one").write_text("rollmill: no space left\n")
    with RunQueue(campaign, 1) as queue:
        os.kill(queue.start(job).process.pid, signal.SIGKILL)
        record = until_one_ends(queue)
    assert record.status == "failed"
    assert record.error == "SIGKILL killed it."


@pytest.mark.parametrize("file", ["one.json", "one.log"])
def test_a_file_that_cannot_be_written_is_named(campaign: Campaign, file: str) -> None:
    job = Job("one", "gym/CartPole-v1", dict(SMALL))
    campaign.add([job])
    (campaign.folder / "jobs" / file).mkdir()
    with RunQueue(campaign, 1) as queue, pytest.raises(CampaignError, match=rf"{file} cannot be written \(Is a dir"):
        queue.start(job)


@pytest.mark.parametrize("is_first_error", [True, False])
def test_the_other_runs_can_save_where_the_record_of_one_cannot_be_written(
    campaign: Campaign, is_first_error: bool
) -> None:
    jobs = [Job(name, "gym/CartPole-v1", {}) for name in ("one", "two")]
    campaign.add(jobs)
    scripts = ("echo; exec sleep 100", "trap 'sleep 0.5; exit 0' TERM; echo; while :; do sleep 0.05; done")
    processes = []

    def run_and_fail() -> None:
        with RunQueue(campaign, 2) as queue:
            for share, (job, script) in enumerate(zip(jobs, scripts, strict=True)):
                process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
                processes.append(process)
                assert process.stdout is not None
                with process.stdout as out:
                    out.readline()  # It handles signals now.
                follower = RunFollower(campaign.run_dir(job.name))
                queue._running[job.name] = RunningJob(job, process, share, time.monotonic(), follower, 0)
            (campaign.folder / "campaign.new").mkdir()
            if not is_first_error:
                raise LookupError("another error")

    with pytest.raises(
        CampaignError if is_first_error else LookupError, match=r"campaign\.json cannot be written|another error"
    ):
        run_and_fail()
    assert [process.returncode for process in processes] == [-signal.SIGTERM, 0]
    assert [record.status for record in campaign.records.values()] == ["waiting", "done"]


@pytest.mark.slow
def test_an_interrupted_run_waits_and_is_resumed_from_its_checkpoint(campaign: Campaign) -> None:
    job = Job("one", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})
    campaign.add([job])
    run_dir = campaign.run_dir("one")
    with RunQueue(campaign, 1) as queue:
        queue.start(job)
        wait_for(lambda: has_checkpoint(run_dir))
    assert campaign.records["one"].status == "waiting"
    assert_nothing_is_left(campaign.token)
    before = read_metrics(run_dir)[-1]["agent_steps"]
    assert before > 0
    with RunQueue(campaign, 1) as queue:
        queue.start(job)
        wait_for(lambda: read_metrics(run_dir)[-1]["agent_steps"] > before)
        queue.stop("one", "pruned")
        record = until_one_ends(queue)
    assert record.status == "pruned"
    assert read_metrics(run_dir)[0]["agent_steps"] < before
    assert was_resumed(run_dir)


def test_a_run_that_does_not_end_in_order_waits_all_the_same(campaign: Campaign) -> None:
    job = Job("one", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})
    campaign.add([job])
    with RunQueue(campaign, 1) as queue:
        queue.start(job)
        queue.running[0].wanted_end = "waiting"
        os.kill(queue.running[0].process.pid, signal.SIGABRT)
        record = until_one_ends(queue)
    assert record.status == "waiting"
    assert record.error
    assert_nothing_is_left(campaign.token)


def test_a_run_that_others_have_killed_has_failed(campaign: Campaign) -> None:
    job = Job("one", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})
    campaign.add([job])
    with RunQueue(campaign, 1) as queue:
        queue.start(job)
        os.kill(queue.running[0].process.pid, signal.SIGKILL)
        record = until_one_ends(queue)
    assert record.status == "failed"
    assert record.error.startswith("SIGKILL killed it")
    assert_nothing_is_left(campaign.token)


@pytest.mark.parametrize(("is_ending", "status"), [(True, "waiting"), (False, "failed")])
def test_a_run_that_was_signalled_with_the_campaign_waits(campaign: Campaign, *, is_ending: bool, status: str) -> None:
    job = Job("one", "gym/CartPole-v1", {**SMALL, "total_steps": 100_000_000})
    campaign.add([job])
    with RunQueue(campaign, 1, is_ending=lambda: is_ending) as queue:
        queue.start(job)
        os.kill(queue.running[0].process.pid, signal.SIGTERM)
        assert until_one_ends(queue).status == status
    assert_nothing_is_left(campaign.token)

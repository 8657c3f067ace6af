"""Lag limits of the trainer, and the times of publications; other parts are tested with whole runs."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tests.learning.small_learner import ROWS, SLOTS, STEPS, a_learner

from rollmill.learning.collective import Alone
from rollmill.learning.lag import LagStatistics, admitted
from rollmill.learning.learner import run_in_turn
from rollmill.learning.progress import Progress
from rollmill.learning.report import CheckpointWritten, LearnerFinished
from rollmill.learning.timetable import ByIteration
from rollmill.learning.trajectories import Trajectories
from rollmill.learning.versions import ExactVersions, NewestVersions, WrongVersionError
from rollmill.storage import slots
from rollmill.storage.background_writes import BackgroundWrites
from rollmill.storage.checkpoint_file import CheckpointError
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.group_states import GroupStates


def trajectories(versions: list[list[int]]) -> Trajectories:
    arrays = {"policy_version": np.array(versions, np.int32), "valid": np.ones(np.shape(versions), bool)}
    return Trajectories(arrays, np.zeros((len(versions) + 1, len(versions[0])), np.int64), (), ())


@pytest.mark.parametrize(("most", "kept"), [(0, 1), (2, 2), (3, 3), (100, 4)])
def test_samples_beyond_the_lag_limit_are_excluded(most: int, kept: int) -> None:
    valid = np.array([[1, 1, 1], [1, 0, 0]], bool)
    versions = np.array([[10, 8, 7], [0, 10, 0]], np.int32)
    statistics = LagStatistics()
    keep, stale = admitted(valid, versions, version=10, most=most, statistics=statistics)
    lag = np.array([[0, 2, 3], [10, 0, 10]])
    np.testing.assert_array_equal(keep, valid & (lag <= most))
    assert keep.sum() == kept
    assert stale == 4 - kept
    assert (statistics.mean, statistics.maximum) == (15 / 4, 10), "over all valid samples, including excluded ones"


def test_samples_of_an_earlier_generation_are_excluded() -> None:
    valid = np.array([[1, 1, 0], [1, 1, 1]], bool)
    versions = np.array([[3, 4, 4], [4, 5, 6]], np.int32)
    keep, stale = admitted(valid, versions, version=6, most=100, statistics=LagStatistics(), oldest=5)
    np.testing.assert_array_equal(keep, [[0, 0, 0], [0, 1, 1]])
    assert stale == 3


def test_newest_version_is_published_at_an_interval() -> None:
    versions, progress = NewestVersions(publish_every=3), Progress()
    published = 0
    seen = []
    for _ in range(8):
        progress.sgd_steps += 1
        assert versions.number(progress) == progress.sgd_steps
        if versions.is_due(versions.number(progress), published):
            published = versions.number(progress)
            seen.append(published)
    assert seen == [3, 6]


def test_an_iteration_is_published_as_a_whole_and_learns_from_one_version(tmp_path: object) -> None:
    versions = ExactVersions(
        num_versions=2,
        num_groups=1,
        states=GroupStates(tmp_path),  # type: ignore[arg-type]
        first_iteration=0,
        collective=Alone(),
    )
    progress = Progress(sgd_steps=40, batches=5)
    assert versions.number(progress) == 5
    assert not versions.is_due(5, 4)
    versions.check(trajectories([[4, 4], [4, 4]]), 5)
    versions.check(trajectories([[0, 0]]), 0)
    with pytest.raises(WrongVersionError, match=r"iteration 5 .* version 4, but was given versions \[3, 4\]"):
        versions.check(trajectories([[4, 3]]), 5)


def test_a_policy_that_has_saved_an_iteration_does_not_save_it_to_resume_again(tmp_path: Path) -> None:
    versions = ExactVersions(
        num_versions=1,
        num_groups=0,
        states=GroupStates(tmp_path),
        first_iteration=0,
        collective=Alone(),
        keeps_groups=False,
    )
    versions.published(5, np.zeros(1, np.uint8), (0.0, 1.0))
    packed = versions.pack(Progress(batches=5), can_resume=True, is_failing=False)
    assert packed is not None
    versions.check_saved({"in_flight": {**packed["in_flight"], "iteration": 0}})
    with pytest.raises(ValueError, match="it belongs to iteration 5, but the groups resume from 0"):
        versions.check_saved(packed)
    assert versions.pack(Progress(batches=5), can_resume=True, is_failing=False) is None
    assert versions.pack(Progress(batches=6), can_resume=True, is_failing=False) is not None


def test_iterations_have_rows_and_checkpoints_at_fixed_counts() -> None:
    timetable = ByIteration(save_every=7, total_steps=10**6, batch_size=100, first_iteration=0)
    rows, saves, last_row = [], [], -1
    for batches in range(401):
        progress = Progress(batches=batches)
        if timetable.is_row_due(progress, last_row, is_time=True):
            rows.append(batches)
            last_row = batches
        if timetable.is_save_due(progress):
            saves.append(batches)
            timetable.saved(progress)
    assert saves == list(range(7, 401, 7))
    assert set(saves) <= set(rows), "a resumed run needs the row before its checkpoint"
    assert {300, 310, 320} <= set(rows), "a thousand rows in a run"
    assert 321 not in rows


def test_a_process_hosts_learners_of_several_policies(tmp_path: Path) -> None:
    made = [a_learner(tmp_path / str(seed), seed) for seed in (1, 2)]
    done, messages = threading.Event(), np.empty(16, np.int64)

    def complete_free() -> None:  # As rollout workers do, whenever a learner has given a slot back.
        while not done.is_set():
            for _, store, _ in made:
                for message in messages[: store.inboxes[0].get_many(messages, 0.001)].tolist():
                    store.complete(slots.decode(message)[1])

    sampling = threading.Thread(target=complete_free)
    sampling.start()
    try:
        run_in_turn([learner for learner, _, _ in made])
    finally:
        done.set()
        sampling.join()
    for learner, _, sent in made:
        assert (learner.progress.batches, learner.progress.agent_steps) == (5, 5 * STEPS * ROWS)
        assert isinstance(sent[-1], LearnerFinished)
        assert sum(isinstance(message, LearnerFinished) for message in sent) == 1
        assert Path(sent[-1].checkpoint).exists()


def test_a_learner_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    writes, may_write = BackgroundWrites(), threading.Event()
    learner, _, sent = a_learner(tmp_path, 1, save_every=STEPS * ROWS, writes=writes)

    def written() -> int:
        return sum(isinstance(message, CheckpointWritten) for message in sent)

    def learn_until(batches: int) -> None:
        while learner.progress.batches < batches:
            assert learner.turn(1.0)

    with learner.start():
        writes.submit(lambda: may_write.wait(10.0))
        learn_until(SLOTS)
        assert written() == 1, "the first one, of the untrained network, is written at once"
        may_write.set()
        writes.submit(lambda: None).result(10.0)
        assert not writes.is_busy
        learner.turn(0.0)  # A checkpoint has been due since the first batch.
        writes.submit(lambda: None).result(10.0)
        learner.turn(0.0)
    assert written() == 2
    learner.finish()
    assert written() == 3
    names = sorted(path.name for path in tmp_path.glob("checkpoint_*"))
    steps = STEPS * ROWS
    assert [int(name.split("_")[3].partition(".")[0]) for name in names] == [0, SLOTS * steps, SLOTS * steps]


def test_a_checkpoint_that_cannot_be_written_in_the_background_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = BackgroundWrites()
    learner, _, _ = a_learner(tmp_path, 1, save_every=STEPS * ROWS, writes=writes)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def learn() -> None:
        for _ in range(50):
            learner.turn(0.1)

    with learner.start():
        monkeypatch.setattr("rollmill.storage.checkpoints.write_whole", fail)
        with pytest.raises(CheckpointError, match=r"could not write .*No space left"):
            learn()


def test_the_recent_return_waits_for_enough_episodes_of_each_task() -> None:
    progress = Progress(num_tasks=2)
    quick, slow = EpisodeEnd(10.0, 10, task=0), EpisodeEnd(-200.0, 200, task=1)
    progress.take_episodes([quick] * 300 + [slow] * 49)
    assert progress.recent_return is None
    progress.take_episodes([slow, *[quick] * 40])
    assert progress.recent_return == -95.0
    assert [episode.task for episode in progress.recent_episodes].count(0) == 50
    resumed = Progress(num_tasks=2)
    resumed.restore(progress.counters(), progress.recent_episodes, least_episodes=0)
    assert resumed.recent_return == -95.0
    resumed.restore(progress.counters(), [EpisodeEnd(0.0, 1)] * 100, least_episodes=0)
    assert resumed.recent_episodes == [], "an earlier version has not saved the tasks"
    alone = Progress()
    alone.take_episodes([EpisodeEnd(1.0, 1)] * 99)
    assert alone.recent_return is None
    alone.take_episodes([EpisodeEnd(101.0, 1)])
    assert alone.recent_return == 2.0

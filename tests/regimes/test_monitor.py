"""What a run tells about itself must never be what it fails of."""

from __future__ import annotations

import io
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rollmill
from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.report import LearnerReport, PolicyLag
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.record import RunRecord
from rollmill.regimes.run_files import leave_curve, leave_ledger
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.reporting.display import Display
from rollmill.reporting.metrics import MetricsNotWrittenError, MetricsWriter, read_metrics
from rollmill.runtime.ledger import ProcessAccount
from rollmill.runtime.ranks import Ranks
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.storage.episodes import EpisodeEnd

PROBED = Probed(
    EnvSpec(
        name="any",
        observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    (NetworkSizes(0, 0, 0),),
)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_full_disk_does_not_hide_what_ended_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    writer = MetricsWriter(tmp_path)
    writer._file.close()
    writer._file = open("/dev/full", "a")  # noqa: SIM115 - the writer closes it
    display = Display(console=Console(file=io.StringIO()))
    monitor = Monitor(rollmill.make_config("gym/CartPole-v1"), PROBED, writer=writer, display=display)
    if is_known:
        with pytest.raises(MetricsNotWrittenError, match="No space left"):
            writer.write({"agent_steps": 1})
    else:
        writer._file.write("as yet in the buffer")
    with pytest.raises(ZeroDivisionError), monitor:
        raise ZeroDivisionError
    assert ("MetricsWriter could not be closed: [Errno 28]" in caplog.text) is not is_known, "a full disk is said once"


def test_reports_that_cannot_be_left_are_told_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.txt").mkdir()
    notes: list[str] = []
    leave_ledger(tmp_path, "the account", note=notes.append)
    leave_curve(tmp_path, title="a run", note=notes.append)
    assert "ledger.txt could not be written: [Errno 21]" in notes[0]
    assert "learning_curve.png could not be plotted: NoMetricsError" in notes[1]
    assert f"rollmill plot {tmp_path}" in notes[1]


def test_without_matplotlib_there_is_no_curve_and_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    notes: list[str] = []
    leave_curve(tmp_path, title="a run", note=notes.append)
    assert notes == []


def report_of(agent_steps: int, **changes: Any) -> LearnerReport:
    return LearnerReport(agent_steps=agent_steps, **changes)


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    config = rollmill.make_config("gym/CartPole-v1", {"target_return": 10.0})
    with Monitor(config, PROBED, writer=writer, display=None, time_before_s=50.0) as monitor:
        old, new = (EpisodeEnd(20.0, 20),) * 100, (EpisodeEnd(30.0, 30),) * 100
        monitor.report(report_of(1000, episodes=300, recent_episodes=old), {})
        assert monitor.mean_return == 20.0
        assert not monitor.has_reached_target, "which has to be shown once more"
        monitor.report(report_of(2000, episodes=350, recent_episodes=old[50:] + new[50:]), {})
        assert monitor.mean_return == 25.0
        monitor.report(report_of(2500, episodes=399, recent_episodes=old[99:] + new[1:], is_row=False), {})
        monitor.report(report_of(3000, episodes=400, recent_episodes=new), {})
        assert monitor.has_reached_target
    rows = read_metrics(tmp_path)
    assert [row["episodes"] for row in rows] == [300, 350, 400]
    assert [row["episode_return"] for row in rows] == [20.0, 25.0, 30.0]
    assert rows[0]["time_s"] >= 50.0


def test_tasks_with_short_episodes_count_no_more_than_others() -> None:
    spec = replace(PROBED.spec, tasks=(PROBED.spec, PROBED.spec))
    config = rollmill.make_config("gym/CartPole-v1", {"target_return": -80.0})
    with Monitor(config, replace(PROBED, spec=spec), writer=None, display=None) as monitor:
        monitor.report(report_of(0), {})
        quick, slow = (EpisodeEnd(10.0, 10, task=0),) * 50, (EpisodeEnd(-200.0, 200, task=1),) * 50
        monitor.report(report_of(100, episodes=100, recent_episodes=quick), {})
        assert monitor.mean_return is None, "no episode of the other task has ended"
        status = monitor.report(report_of(200, episodes=101, recent_episodes=quick + slow[:1]), {})
        assert monitor.mean_return == status.episode_return == -95.0
        better = tuple(replace(episode, episode_return=50.0) for episode in quick)
        monitor.report(report_of(300, episodes=150, recent_episodes=better + slow[1:]), {})
        assert monitor.mean_return == -75.0
        assert not monitor.has_reached_target, "one episode more"
        monitor.report(report_of(400, episodes=151, recent_episodes=better + slow), {})
        assert monitor.has_reached_target


def account(**phases: float) -> ProcessAccount:
    return ProcessAccount(
        name="learner",
        role="learner",
        pid=1,
        phases={"learning": 0.0, "waiting": 0.0, **phases},
        counters={},
        waiting=frozenset({"waiting"}),
        alive_since=0.0,
        current_phase="learning",
        current_since=0.0,
        ended=False,
        cpu_seconds=0.0,
    )


def test_the_end_shows_what_was_known_last_and_no_zeros(tmp_path: Path) -> None:
    out = io.StringIO()
    display = Display(console=Console(file=out, width=300), plain_interval_s=0.0)
    writer = MetricsWriter(tmp_path)
    config = rollmill.make_config("gym/CartPole-v1")
    with Monitor(config, PROBED, writer=writer, display=display) as monitor:
        began = time.monotonic()
        some = PolicyLag(mean=2.5, maximum=4, histogram=(0, 3, 0, 0, 1, 0), versions_per_trajectory=1.5)
        monitor.report(report_of(0, lag=PolicyLag(), at=began), {"learner": account()})
        accounts = {"learner": account(learning=3.0, waiting=1.0)}
        monitor.report(report_of(1000, lag=some, at=began + 10.0), accounts)
        # The end of a run: a moment later, in which nothing was learned.
        accounts = {"learner": account(learning=3.0, waiting=1.1)}
        monitor.report(report_of(1000, lag=PolicyLag(), at=began + 10.1, is_row=False), accounts)
    first, *_, last = out.getvalue().splitlines()
    assert "| - frames/s |" in first
    assert first.endswith("| lag -")
    assert "lag 2.5 (max 4) | learner 75% busy, waiting 25%" in last
    rows = read_metrics(tmp_path)
    assert [row["policy_lag_mean"] for row in rows] == [None, 2.5]
    assert [row["policy_lag_histogram"] for row in rows] == [[], [0, 3, 0, 0, 1]]


def test_rows_are_of_the_time_at_which_they_were_reported(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    with Monitor(rollmill.make_config("gym/CartPole-v1"), PROBED, writer=writer, display=None) as monitor:
        began = time.monotonic()
        for second in range(3):
            accounts = {"learner": account(learning=2.0 * second, waiting=2.0 * second)}
            for moment in (0.0, 0.1):
                monitor.report(report_of(1000 * second, at=began + 5.0 * second + moment), accounts)
    rows = read_metrics(tmp_path)
    assert [round(row["time_s"] - rows[0]["time_s"], 3) for row in rows] == [0.0, 0.1, 5.0, 5.1, 10.0, 10.1]
    assert rows[-1]["steps_per_second"] == pytest.approx(200, rel=0.05)
    shares = [row.get("share/learner/learning") for row in rows]
    assert shares == [None, None, 0.5, None, 0.5, None], "a tenth of a second says nothing of where the time goes"


def test_a_resumed_run_is_judged_with_the_rows_before_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="rollmill.run")
    solved = (EpisodeEnd(500.0, 500),) * 100
    before = {"agent_steps": 1000, "episodes": 200, "episode_return": 50.0, "episode_return_std": 9.0}
    config = rollmill.make_config("gym/CartPole-v1", {"total_steps": 10_000})
    for earlier, is_warned in (([before], False), ([], True)):
        caplog.clear()
        with Monitor(config, PROBED, writer=None, display=None, earlier=earlier, is_resumed=True) as monitor:
            for steps in range(2000, 6000, 1000):
                monitor.report(report_of(steps, episodes=steps, recent_episodes=solved), {})
        assert ("episodes had the same return" in caplog.text) is is_warned


@pytest.mark.parametrize(
    ("algo", "sigma", "is_warned"),
    [(None, 0.1, False), (None, 1e-3, True), ("sac", 1e-3, False)],
    ids=["fine actions", "collapsed", "off-policy"],
)
def test_a_small_deviation_is_no_collapse(
    caplog: pytest.LogCaptureFixture, algo: str | None, sigma: float, is_warned: bool
) -> None:
    """The entropy of a Gaussian passes 0 at a deviation of 0.24, and SAC's target is below 0."""
    caplog.set_level("INFO", logger="rollmill.run")
    box = BoxHead(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    probed = replace(PROBED, spec=replace(PROBED.spec, action=ActionSpec(heads=(box,), structure="box")))
    config = rollmill.make_config(
        "gym/Pendulum-v1", {"total_steps": 20_000, **({} if algo else {"learner.epochs": 1})}, algo=algo
    )
    with Monitor(config, probed, writer=None, display=None) as monitor:
        for steps in range(1000, 10_000, 1000):
            deviation = 0.25 if steps < 3000 else sigma
            entropy = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(deviation))
            ended = (EpisodeEnd(-900.0, 200), EpisodeEnd(-1000.0, 200)) * 50
            monitor.report(report_of(steps, episodes=steps, recent_episodes=ended, losses={"entropy": entropy}), {})
    assert ("it no longer explores" in caplog.text) is is_warned


def test_warnings_have_their_level_in_the_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level("INFO", logger="rollmill.run")
    config = rollmill.make_config("gym/CartPole-v1")
    with Monitor(config, PROBED, writer=None, display=None) as monitor:
        monitor.note("it begins")
        monitor.warn("it may not learn")
        monitor.take_env_metrics(EnvMetrics({}, {"speed": "'speed' is no number"}, {}))
    record = RunRecord(config, tmp_path, Ranks(), resume=False, changed={}, show=None)
    record.warn("a tracker failed")
    assert [(entry.levelname, entry.message) for entry in caplog.records] == [
        ("INFO", "it begins"),
        ("WARNING", "it may not learn"),
        ("WARNING", "warning: 'speed' is no number"),
        ("WARNING", "a tracker failed"),
    ]

"""What environments give in ``info["metrics"]`` is in every record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import metric_envs  # noqa: F401  registers environments
import pytest

import rollmill
from rollmill.comparing.page import write_report
from rollmill.reporting.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SMALL: dict[str, Any] = {
    "env.imports": ("metric_envs",),
    "num_envs": 8,
    "rollout.num_workers": 2,
    "model.mlp_sizes": "16",
    "total_steps": 4000,
}
ON_POLICY: dict[str, Any] = {"envs_per_group": 2, "rollout_length": 16, "learner.batch_size": 128}
REPLAY: dict[str, Any] = {"algo": "dqn", "replay.capacity": 512, "replay.min_size": 200, "replay.update_interval": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("test/metered", ON_POLICY),
        ("test/metered-vector", {**ON_POLICY, "regime": "lockstep"}),
        ("test/metered", REPLAY),
    ],
)
def test_means_are_in_metrics_callbacks_tensorboard_and_the_report(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = []

    class Looking(rollmill.Callback):
        def on_report(self, run: rollmill.LiveRun, metrics: Any) -> None:
            seen.append(metrics.get("env/constant"))

    rollmill.train(name, run_dir=tmp_path / "run", quiet=True, callbacks=[Looking()], **SMALL, **settings)
    assert 2.5 in seen
    rows = read_metrics(tmp_path / "run")
    for key, value in (("env/constant", 2.5), ("env/length", 10.0)):
        found = [row[key] for row in rows if key in row]
        assert value in found
        assert set(found) <= {value, None}
    assert not any("env/map" in row for row in rows)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {event.value for event in events.Scalars("env/constant")} == {2.5}
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("warning: info['metrics']['map'] is 'caves' (str): give a number; it is left out") == 1
    page = write_report([tmp_path / "run"], tmp_path / "page").page.read_text()
    assert "<h3>Metrics of the environment</h3>" in page
    assert "<th>constant</th><th>length</th>" in page
    assert "<td>2.5</td><td>10</td>" in page

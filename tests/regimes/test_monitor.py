"""What a run tells about itself must never be what it fails of."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import rollmill
from rollmill.regimes.asynchronous import _leave_reports
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.setup import Probed
from rollmill.reporting.display import Display
from rollmill.reporting.metrics import MetricsWriter
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

PROBED = Probed(
    EnvSpec(
        name="any",
        observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    state_size=0,
    weight_nbytes=0,
    num_parameters=0,
)


def test_a_full_disk_does_not_hide_what_ended_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = MetricsWriter(tmp_path)
    writer._file.close()
    writer._file = open("/dev/full", "a")  # noqa: SIM115 - the writer closes it
    display = Display(console=Console(file=io.StringIO()))
    monitor = Monitor(rollmill.make_config("gym/CartPole-v1"), PROBED, writer=writer, display=display)
    with pytest.raises(OSError, match="No space left"):
        writer.write({"agent_steps": 1})
    with pytest.raises(ZeroDivisionError), monitor:
        raise ZeroDivisionError
    assert "MetricsWriter could not be closed: [Errno 28]" in caplog.text
    assert writer._events is None, "what can be closed is closed"


def test_reports_that_cannot_be_left_are_told_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.txt").mkdir()
    notes: list[str] = []
    _leave_reports(tmp_path, "the account", title="a run", note=notes.append)
    assert "ledger.txt could not be written: [Errno 21]" in notes[0]
    assert "learning_curve.png could not be drawn: NoMetricsError" in notes[1]
    assert f"rollmill plot {tmp_path}" in notes[1]

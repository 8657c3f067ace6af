"""``rollmill bench ring``: each queue passes messages, and what cannot be measured is refused."""

from __future__ import annotations

import pytest

from rollmill.benchmarking import ring


def test_each_queue_passes_messages() -> None:
    rates = ring.run(0.5, producers=(1,))["producers"]
    assert list(rates) == ["1"]
    assert {"rollmill", "multiprocessing"} <= set(rates["1"])
    assert all(rate > 0 for rate in rates["1"].values())


@pytest.mark.parametrize(
    ("seconds", "producers", "message"),
    [
        (0.0, (1,), "seconds is 0.0; give a positive number of seconds"),
        (float("nan"), (1,), "seconds is nan"),
        (1.0, (), r"producers is \(\); give numbers of processes, each at least 1"),
        (1.0, (2, 0), r"producers is \(2, 0\)"),
    ],
)
def test_what_cannot_be_measured_is_refused(seconds: float, producers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ring.run(seconds, producers)

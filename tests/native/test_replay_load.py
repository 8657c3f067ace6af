"""The replay's load driver runs every kind of locking and refuses what makes no sense."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rollmill.native import replay_load


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("locking", ["robust", "none", "nested", "sharded", "global", "over_write"])
def test_every_locking_gets_work_done(
    locking: Literal["robust", "none", "nested", "sharded", "global", "over_write"], processes: bool
) -> None:
    report = replay_load(locking, 3, processes=processes, seconds=0.05, capacity=4096, row_bytes=32)
    assert list(report) == ["insert", "sample", "update"]
    for operation in report.values():
        assert operation["per_second"] > 0
        assert 0 < operation["p50_us"] <= operation["p99_us"] <= operation["p999_us"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"locking": "spin"}, "locking is 'spin'; allowed: 'none', 'robust'"),
        ({"capacity": 4000}, "capacity is 4000; it must be a multiple of 512"),
        ({"num_workers": 0}, "num_workers, seconds, row_bytes, insert_rows and batch must all be above 0"),
        ({"seconds": 0.0}, "num_workers, seconds, row_bytes, insert_rows and batch must all be above 0"),
    ],
)
def test_refuses_what_makes_no_sense(changes: dict[str, Any], message: str) -> None:
    arguments = {"locking": "robust", "num_workers": 1, "processes": False, "seconds": 0.1}
    with pytest.raises(ValueError, match=message):
        replay_load(**{**arguments, "capacity": 4096, "row_bytes": 32, **changes})

"""The queue benchmark measures what it says and refuses what makes no sense."""

from __future__ import annotations

import pytest

from rollmill.benchmarking.ring import run


@pytest.mark.slow
def test_every_queue_moves_messages() -> None:
    result = run(0.3, producers=(1, 2))
    assert list(result["producers"]) == ["1", "2"]
    for rates in result["producers"].values():
        assert {"rollmill", "multiprocessing"} <= set(rates)
        assert all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize(("seconds", "producers"), [(0.0, (1,)), (1.0, ()), (1.0, (2, 0))])
def test_refuses_what_makes_no_sense(seconds: float, producers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"seconds is|producers is"):
        run(seconds, producers)

"""Times of metrics rows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rollmill.learning.report import is_milestone


@pytest.mark.parametrize("batches", [100, 101, 150, 199, 400, 1234, 10_000, 1_000_000])
def test_any_run_has_about_a_hundred_rows(batches: int) -> None:
    due = [count for count in range(1, batches + 1) if is_milestone(count)]
    assert 100 <= len(due) <= 800
    assert due[:100] == list(range(1, 101)), "a short run has a row for each batch"
    assert max(b - a for a, b in pairwise(due)) <= max(1, batches / 50)

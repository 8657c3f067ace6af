"""When rows of metrics are due."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rollmill.learning.report import is_milestone


@pytest.mark.parametrize("batches", [100, 101, 150, 199, 400, 1234, 10_000, 1_000_000])
def test_a_run_of_any_length_has_a_hundred_rows_and_not_many_more(batches: int) -> None:
    due = [count for count in range(1, batches + 1) if is_milestone(count)]
    assert 100 <= len(due) <= 800
    assert due[:100] == list(range(1, 101)), "a run that ends early has a row for each batch"
    assert max(b - a for a, b in pairwise(due)) <= max(1, batches / 50)

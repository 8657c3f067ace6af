"""What the learner lets in; the rest of it is tested with whole runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollmill.learning.lag import LagStatistics
from rollmill.learning.learner import Learner


@pytest.mark.parametrize(("most", "kept"), [(0, 1), (2, 2), (3, 3), (100, 4)])
def test_samples_older_than_the_limit_do_not_count(most: int, kept: int) -> None:
    batch: Any = SimpleNamespace(
        arrays={
            "valid": np.array([[1, 1, 1], [1, 0, 0]], bool),
            "policy_version": np.array([[10, 8, 7], [0, 10, 0]], np.int32),
        }
    )
    learner: Any = SimpleNamespace(
        version=10,
        stale_samples=5,
        invalid_samples=7,
        _lag=LagStatistics(),
        _config=SimpleNamespace(max_policy_lag=most),
    )
    keep = Learner._admit(learner, batch)
    lag = np.array([[0, 2, 3], [10, 0, 10]])
    np.testing.assert_array_equal(keep, batch.arrays["valid"] & (lag <= most))
    assert keep.sum() == kept
    assert learner.stale_samples == 5 + 4 - kept
    assert learner.invalid_samples == 7 + 2
    assert (learner._lag.mean, learner._lag.maximum) == (15 / 4, 10), "of all valid samples, also those left out"


def test_weights_are_published_every_so_many_steps_and_at_the_end_of_a_batch() -> None:
    learner = Learner.__new__(Learner)
    published = []
    attributes: dict[str, Any] = {
        "sgd_steps": 0,
        "_config": SimpleNamespace(publish_every=3),
        "_ledger": SimpleNamespace(enter=lambda phase: None, add=lambda counter, amount: None),
        "_flat": SimpleNamespace(pack=lambda: None, bytes=None),
        "_weights": SimpleNamespace(publish=lambda version, weights: published.append(version)),
    }
    vars(learner).update(attributes)
    learner._publish()
    for _ in range(2):
        for _ in range(4):
            learner._after_step()
        learner._publish_last()
    assert published == [0, 3, 4, 7, 8]
    learner._publish_last()
    assert published == [0, 3, 4, 7, 8], "a batch without any step has nothing new"

"""Who is replaced by whom, also where objectives are negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.pbt.config import PbtConfig
from rollmill.pbt.selection import is_among_best, replacement


def chosen(scores: dict[int, float], **settings: Any) -> dict[int, int | None]:
    """Policy -> who replaces it, of those that are not among the best."""
    config = PbtConfig(**{"relative_gap": 0.0, **settings})
    return {
        policy: replacement(policy, scores, config, np.random.default_rng(policy))
        for policy in scores
        if not is_among_best(policy, scores, config)
    }


def test_the_worst_share_is_replaced_by_the_best_share() -> None:
    scores = {policy: float(policy) for policy in range(10)}
    config = PbtConfig()
    assert [policy for policy in scores if is_among_best(policy, scores, config)] == [7, 8, 9]
    drawn = {
        policy: {replacement(policy, scores, config, np.random.default_rng(seed)) for seed in range(40)}
        for policy in range(7)
    }
    assert all(drawn[policy] == {7, 8, 9} for policy in (0, 1, 2))
    assert all(drawn[policy] == {None} for policy in (3, 4, 5, 6))


@pytest.mark.parametrize(
    ("policies", "share", "replaced"), [(2, 0.3, 1), (3, 0.3, 1), (4, 0.3, 1), (4, 0.5, 2), (5, 0.5, 2), (8, 0.3, 2)]
)
def test_at_least_one_is_replaced_and_nobody_is_both(policies: int, share: float, replaced: int) -> None:
    scores = {policy: -float(policy) for policy in range(policies)}
    found = chosen(scores, share=share)
    assert sum(source is not None for source in found.values()) == replaced
    assert all(source is None or source < policy for policy, source in found.items())


@pytest.mark.parametrize("shift", [0.0, -100.0])
def test_gaps_have_the_same_sign_for_negative_objectives(shift: float) -> None:
    scores = {0: 5.0 + shift, 1: 4.0 + shift}
    assert chosen(scores, gap=0.9) == {1: 0}
    assert chosen(scores, gap=1.0) == {1: None}


def test_a_relative_gap_is_a_share_of_the_other_s_absolute_objective() -> None:
    assert chosen({0: -10.0, 1: -12.0}, relative_gap=0.19) == {1: 0}
    assert chosen({0: -10.0, 1: -12.0}, relative_gap=0.2) == {1: None}
    assert chosen({0: 10.0, 1: 8.0}, relative_gap=0.19) == {1: 0}
    assert chosen({0: 0.0, 1: -1e-9}, relative_gap=0.5) == {1: 0}


def test_equals_are_never_replaced() -> None:
    assert chosen({0: 1.0, 1: 1.0, 2: 1.0}) == {1: None, 2: None}


def test_half_of_the_best_one_s_objective() -> None:
    assert chosen({0: 0.9, 1: 0.44, 2: 0.46}, rule="half") == {1: 0, 2: None}
    assert chosen({0: -10.0, 1: -16.0, 2: -14.0}, rule="half") == {1: 0, 2: None}

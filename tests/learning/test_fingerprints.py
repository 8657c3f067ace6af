"""Fingerprints of updates: what changes them, and the first difference between two runs."""

from __future__ import annotations

from typing import Any

from rollmill.learning.fingerprints import Difference, first_difference


def test_the_first_difference_names_the_part() -> None:
    def line(update: int, environment: str, inference: str, learner: str) -> dict[str, Any]:
        chain = f"{update}{environment}{inference}{learner}"
        parts = {"environment": list(environment), "inference": list(inference)}
        return {"update": update, **parts, "learner": learner, "chain": chain}

    base = [line(0, "abc", "xyz", "p"), line(1, "abc", "xyz", "p")]
    assert first_difference(base, base) is None
    # The action at step 1 differs, and what it leads to: the action was first.
    assert first_difference(base, [base[0], line(1, "abd", "xqz", "p")]) == Difference(1, "inference", 1)
    # The environment showed something else at step 1 before anything was chosen there.
    assert first_difference(base, [base[0], line(1, "adc", "xqz", "p")]) == Difference(1, "environment", 1)
    assert first_difference(base, [line(0, "abc", "xyz", "q"), base[1]]) == Difference(0, "learner", None)

"""Who is replaced by whom."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.pbt.config import PbtConfig


def is_among_best(policy: int, scores: Mapping[int, float], config: PbtConfig) -> bool:
    """Whether a policy is one of those that go on unchanged.

    Args:
        policy: One of ``scores``.
        scores: Policy -> objective, of those that take part.
        config: Rule and share.
    """
    best = 1 if config.rule == "half" else _count(len(scores), config)
    return policy in _ranked(scores)[:best]


def replacement(policy: int, scores: Mapping[int, float], config: PbtConfig, random: np.random.Generator) -> int | None:
    """Return the policy whose weights replace this one's; None if it keeps its own.

    Gaps have a sign: the other's objective minus this policy's, which may both be negative.

    Args:
        policy: One of ``scores``.
        scores: Policy -> objective, of those that take part.
        config: Rule, share and gaps.
        random: Draws one of the best.
    """
    ranked = _ranked(scores)
    if config.rule == "half":
        other = ranked[0]
        if scores[other] - scores[policy] <= abs(scores[other]) / 2:
            return None
    else:
        count = _count(len(ranked), config)
        if policy not in ranked[len(ranked) - count :]:
            return None
        other = int(random.choice(ranked[:count]))
    gap = scores[other] - scores[policy]
    is_better = gap > config.gap and gap > config.relative_gap * abs(scores[other])
    return other if is_better else None


def _ranked(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=lambda policy: (-scores[policy], policy))


def _count(policies: int, config: PbtConfig) -> int:
    """Return the number of the best, and of the worst; they never overlap."""
    return min(max(1, round(config.share * policies)), policies // 2)

"""Few configurations in which any two values of two settings meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]
# Of a pair that cannot be completed to an allowed case it is only known that so many draws did not do it.
_DRAWS = 300
_CANDIDATES = 20


def all_pairs(
    factors: Mapping[str, Sequence[Any]], seed: int, is_allowed: Callable[[Case], bool] = lambda case: True
) -> list[Case]:
    """Return cases, one value of each factor in each, that have every pair of values of two factors at least once.

    Source: the greedy method of AETG (Cohen et al. 1997, https://doi.org/10.1109/32.605761).

    Args:
        factors: Name -> its values.
        seed: Another seed gives other cases.
        is_allowed: Whether a case may be tried; pairs that only forbidden cases have are left out.
    """
    generator = random.Random(seed)
    left = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(factors, 2)
        for i, j in itertools.product(range(len(factors[a])), range(len(factors[b])))
    }

    def drawn(fixed: Mapping[str, int]) -> dict[str, int] | None:
        for _ in range(_DRAWS):
            case = {name: generator.randrange(len(values)) for name, values in factors.items()} | fixed
            if is_allowed({name: factors[name][place] for name, place in case.items()}):
                return case
        return None

    def pairs_of(case: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
        return left & set(itertools.combinations(case.items(), 2))

    cases: list[Case] = []
    while left:
        pair = min(left)
        candidates = [case for case in (drawn(dict(pair)) for _ in range(_CANDIDATES)) if case is not None]
        if not candidates:
            left.discard(pair)
            continue
        best = max(candidates, key=lambda case: len(pairs_of(case)))
        left -= pairs_of(best)
        cases.append({name: factors[name][place] for name, place in best.items()})
    return cases


def all_values(cases: Sequence[Case]) -> list[Case]:
    """Return few of these cases, in which every value of every factor still occurs."""
    left = {(name, repr(value)) for case in cases for name, value in case.items()}
    chosen: list[Case] = []
    while left:
        best = max(cases, key=lambda case: sum((name, repr(value)) in left for name, value in case.items()))
        left -= {(name, repr(value)) for name, value in best.items()}
        chosen.append(best)
    return chosen

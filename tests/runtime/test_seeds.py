"""Random streams: distinct for distinct keys, equal for equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.runtime import seeds


def test_equal_keys_give_equal_streams_and_each_part_of_the_key_counts() -> None:
    keys = [(s, r, i) for s in (0, 1, 2**40) for r in ("environment", "policy worker", "") for i in (0, 1, 2**33)]
    draws = {key: tuple(seeds.stream(*key).integers(0, 2**63, 4).tolist()) for key in keys}
    assert len(set(draws.values())) == len(keys)
    assert all(tuple(seeds.stream(*key).integers(0, 2**63, 4).tolist()) == draw for key, draw in draws.items())


def test_streams_are_independent_in_practice() -> None:
    a = seeds.stream(0, "environment", 0).standard_normal(20_000)
    b = seeds.stream(0, "environment", 1).standard_normal(20_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(20_000)


def test_values_do_not_change_between_versions() -> None:
    assert seeds.int_seed(0, "environment", 0) == 974684709
    assert int(seeds.stream(0, "environment", 0).integers(0, 2**63)) == 5809169130832606182


@pytest.mark.parametrize("bits", [8, 9, 31, 63])
def test_integer_seeds_of_one_role_never_collide(bits: int) -> None:
    count = min(1 << bits, 5_000)
    values = [seeds.int_seed(3, "environment", index, bits=bits) for index in range(count)]
    assert len(set(values)) == count
    assert min(values) >= 0
    assert max(values) < 1 << bits


def test_integer_seeds_fill_their_range_evenly() -> None:
    values = np.array([seeds.int_seed(5, "environment", index) for index in range(5_000)]) / 2**31
    # The mean of 5,000 uniform numbers has a standard error of 1 / sqrt(12 * 5000).
    assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * 5_000)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(5_000)


def test_runs_and_roles_get_other_integers() -> None:
    def first(seed: int, role: str) -> list[int]:
        return [seeds.int_seed(seed, role, index) for index in range(200)]

    all_of_them = first(0, "environment") + first(1, "environment") + first(0, "evaluation")
    # 600 independent 31-bit numbers collide with a probability below 1e-4, and these are fixed.
    assert len(set(all_of_them)) == len(all_of_them)


def test_impossible_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="seed=-1"):
        seeds.stream(-1, "environment", 0)
    with pytest.raises(ValueError, match="index=-2"):
        seeds.int_seed(0, "environment", -2)
    with pytest.raises(ValueError, match="bits=64"):
        seeds.int_seed(0, "environment", 0, bits=64)
    with pytest.raises(ValueError, match="does not fit 8 bits"):
        seeds.int_seed(0, "environment", 256, bits=8)

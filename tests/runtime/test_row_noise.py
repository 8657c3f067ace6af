"""Noise that is keyed by row and step, and by nothing else."""

from __future__ import annotations

import numpy as np

from rollmill.runtime.row_noise import RowNoise


def test_a_row_draws_the_same_in_any_company() -> None:
    rows, steps = np.arange(64), np.full(64, 17)
    noise = RowNoise(3, "actions", width=6)
    together = noise.uniform(rows, steps)
    again = RowNoise(3, "actions", width=6)
    for row in (0, 5, 63):
        alone = again.uniform(np.array([row]), np.array([17]))
        np.testing.assert_array_equal(together[row], alone[0])
    np.testing.assert_array_equal(noise.uniform(rows[::-1], steps)[::-1], together)


def test_other_rows_steps_seeds_and_roles_draw_other_numbers() -> None:
    rows, steps = np.repeat(np.arange(40), 50), np.tile(np.arange(50), 40)
    drawn = RowNoise(1, "actions", width=4).uniform(rows, steps)
    # 24 bits: of 8,000 numbers some two pairs are alike, but no two rows and no two steps are.
    assert len({tuple(line) for line in drawn}) == len(drawn)
    for other in (RowNoise(2, "actions", width=4), RowNoise(1, "else", width=4)):
        assert (other.uniform(rows, steps) == drawn).mean() < 0.01


def test_the_numbers_are_uniform_and_independent() -> None:
    rows, steps = np.repeat(np.arange(200), 500), np.tile(np.arange(500), 200)
    drawn = RowNoise(7, "actions", width=2).uniform(rows, steps).astype(np.float64)
    count = len(drawn)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    bins = np.bincount((drawn.ravel() * 64).astype(int), minlength=64)
    expected = 2 * count / 64
    chi2 = ((bins - expected) ** 2 / expected).sum()
    assert 63 - 5 * np.sqrt(126) < chi2 < 63 + 5 * np.sqrt(126)
    centred = drawn - 0.5
    of_rows = centred.reshape(200, 500, 2)
    bound = 5 / np.sqrt(count) / 12  # five standard errors of a product of two independent uniform numbers
    assert abs((centred[:, 0] * centred[:, 1]).mean()) < bound
    assert abs((of_rows[:, 1:, 0] * of_rows[:, :-1, 0]).mean()) < bound
    assert abs((of_rows[1:, :, 0] * of_rows[:-1, :, 0]).mean()) < bound

"""Settings of population-based training that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.pbt.config import PbtConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.6}, r"pbt\.share=0\.6: give a finite number above 0 and at most 0\.5"),
        ({"factor": 0.8}, r"pbt\.factor=0\.8: give a number above 1, or a range"),
        ({"factor": (1.5, 1.2)}, r"pbt\.factor=\(1\.5, 1\.2\)"),
        ({"mutation_rate": 1.5}, r"pbt\.mutation_rate=1\.5: give a finite number in \[0, 1\]"),
        ({"mutate": ("learning_rate", "learning_rate")}, "name each number once"),
        ({"limits": {"nosuch": "0.9,0.99"}}, r"pbt\.limits has 'nosuch': give names among learning_rate, .*NAME"),
        (
            {"limits": {"learning_rate": "1e-3"}},
            r"pbt\.limits\.learning_rate='1e-3': give the smallest and the",
        ),
        ({"limits": {"learning_rate": 3}}, r"pbt\.limits\.learning_rate=3"),
        ({"limits": {"learning_rate": "1e-2,1e-3"}}, "give the smallest and then the largest value, each a finite"),
        ({"limits": {"adam_beta1": "0.5,1"}}, r"in \[0, 1\)"),
        ({"window": 0}, r"pbt\.window=0: give an integer of at least 1"),
        ({"every": 0}, r"pbt\.every=0"),
        ({"rule": "best"}, r"pbt\.rule='best'"),
    ],
)
def test_values_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PbtConfig(**settings)

"""The result of tuning as text and as files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tuning.straight_curves import CURVES, line

from rollmill.tuning.curves import Curve, Curves
from rollmill.tuning.tune import tune

pytestmark = pytest.mark.usefixtures("sixteen_cores")


def test_the_summary_has_a_sentence_for_each_fact() -> None:
    tuning = tune("gym/CartPole-v1", curves=CURVES)
    measured = replace(tuning, predicted=53_000.0, steps_per_second=34_000.0, gain=1.21, notes=("it was dark",))
    assert measured.summary().splitlines()[1:3] == [
        "The model predicts 53,000 agent steps/s; 34,000 were measured, because processes also wait for each other "
        "and for a free core.",
        "That is 1.21 times the speed of the preset's own settings.",
    ]
    assert measured.summary().endswith("\nNote: it was dark.")
    near = replace(measured, predicted=35_000.0, allocation=tuning.preset)
    assert near.summary().splitlines()[1:3] == [
        "34,000 agent steps/s were measured; the model predicts 35,000.",
        "Nothing that was tried is clearly faster than the preset's own settings.",
    ]
    elsewhere = replace(measured, gain=None)
    assert "The model predicts 34,000 agent steps/s there, from what was measured on this machine." in (
        elsewhere.summary().splitlines()
    )
    assert measured.describe().startswith(measured.summary())


def test_both_sides_of_the_equation_are_shown() -> None:
    slow = Curves(cores=8, actors=line(8, 1000.0), learners=Curve((1.0,), (0.5,)))
    tuning = tune("gym/CartPole-v1", algo="dqn", curves=slow)
    learned = tuning.update_interval * 0.5
    assert f"u f_l(x_l) = {learned:,.0f} agent steps/s" in tuning.describe()
    assert "Learning limits the speed" in tuning.describe()

"""Curves of both sides that are lines through the origin."""

from __future__ import annotations

from rollmill.tuning.curves import Curve, Curves

CURVES = Curves(
    cores=16,
    actors=Curve.through((float(x), 1000.0 * x) for x in range(1, 17)),
    learners=Curve.through((float(x), 25.0 * x) for x in range(1, 17)),
)


def line(most: int, rate: float) -> Curve:
    return Curve.through((float(x), rate * x) for x in range(1, most + 1))

"""Piecewise-linear schedules as text: ``0:3e-4,1e6:1e-4,5e6:0``. Does not import torch."""

from __future__ import annotations

import math

SYNTAX = (
    "points as AGENT_STEPS:LEARNING_RATE, comma-separated, at least two, with increasing steps and rates of 0 or more, "
    "such as 0:3e-4,1e6:1e-4,5e6:0"
)


def parse_points(text: str) -> tuple[tuple[int, float], ...]:
    """Parse the points of a schedule.

    Args:
        text: See :data:`SYNTAX`.

    Returns:
        (agent steps, value) of each point.

    Raises:
        ValueError: Invalid text; the message says what is wrong, not what is allowed.
    """
    points: list[tuple[int, float]] = []
    for part in text.split(","):
        steps_text, _, value_text = part.partition(":")
        try:
            steps, value = float(steps_text), float(value_text)
        except ValueError:
            raise ValueError(f"{part.strip()!r} is not two numbers with a colon between them") from None
        if not (steps >= 0 and steps.is_integer()):
            raise ValueError(f"{steps_text.strip()!r} is not a whole number of agent steps, 0 or more")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{value_text.strip()!r} is not a finite number, 0 or more")
        if points and steps <= points[-1][0]:
            raise ValueError(f"{steps_text.strip()} does not come after {points[-1][0]}")
        points.append((int(steps), value))
    if len(points) < 2:
        raise ValueError("a schedule needs at least two points")
    if all(value == 0 for _, value in points):
        raise ValueError("all values are 0, so nothing would be learned")
    return tuple(points)

"""The curves of a method's runs, and notes on runs whose metrics have too few rows for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.reporting.plots import Band, Curve, curve_of, overlay_if_alike

AXES = ("agent_steps", "time_s")
_FEW_POINTS = 10


@dataclass(frozen=True)
class MethodCurves:
    """One method's curves over one axis.

    Attributes:
        singles: The curve of each run that has a point.
        mean: Mean and range of several runs where they share most of the axis; None where each is drawn separately.
    """

    singles: tuple[Curve, ...]
    mean: Band | None


def curves_of_method(runs: Sequence[ComparedRun], axis: str) -> MethodCurves:
    """The curves to draw.

    Args:
        runs: The runs of one method in one environment.
        axis: ``"agent_steps"`` or ``"time_s"``.
    """
    singles = tuple(curve for run in runs if len((curve := curve_of(run.records, axis, "episode_return")).x))
    if len(singles) < 2:
        return MethodCurves(singles, None)
    return MethodCurves(singles, overlay_if_alike(singles))


def is_coarse(curve: Curve) -> bool:
    """Whether a curve has so few points that they are marked."""
    return len(curve.x) <= _FEW_POINTS


def curve_notes(comparison: Comparison, env: str) -> list[str]:
    """Sentences on the runs whose curves are missing, coarse, or without a mean."""
    notes = []
    for label in comparison.labels:
        runs = comparison.of(label, env)
        seeds_of: dict[str, list[int]] = {}
        for run in runs:
            points = len(curve_of(run.records, "agent_steps", "episode_return").x)
            if not run.records:
                seeds_of.setdefault("no curve, because their metrics have no rows", []).append(run.seed)
            elif not points:
                seeds_of.setdefault("no curve, because no row of their metrics has a return", []).append(run.seed)
            elif points <= _FEW_POINTS:
                seeds_of.setdefault(f"curves of at most {_FEW_POINTS} points, which are marked", []).append(run.seed)
        notes += [
            f"{label}: runs of seed {', '.join(map(str, seeds))} have {what}." for what, seeds in seeds_of.items()
        ]
        apart = [
            words
            for axis, words in zip(AXES, ("agent steps", "minutes"), strict=True)
            if len((found := curves_of_method(runs, axis)).singles) > 1 and found.mean is None
        ]
        if apart:
            notes.append(
                f"{label}: the runs share less than half of the range that they cover in {' and in '.join(apart)}, so "
                "each is drawn separately, without a mean."
            )
    return notes

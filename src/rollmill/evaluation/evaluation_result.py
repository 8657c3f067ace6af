"""The result of an evaluation: returns with intervals, scores and metrics, as JSON data or as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.scores import human_normalised, mean_capped, median


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The result of an evaluation.

    Attributes:
        env: The environment's name.
        checkpoint: The file whose weights were evaluated.
        agent_steps: Agent steps of training before this checkpoint.
        returns: Raw return of each episode, grouped by environment, and with several agents by agent.
        lengths: Agent steps of each episode.
        mean: Mean return.
        interval: Its 95 % bootstrap interval. Whole episodes of environments are resampled: the returns of several
            agents in one of them depend on each other.
        frames: Agent steps of all episodes times the frame skip; agents that act together count one by one.
        seconds: Wall-clock time of the episodes.
        deterministic: Whether the best actions were taken: the most probable, or those with the highest value.
        seed: Seed of the evaluation.
        video: The video of one episode; None if none was requested.
        policies: Where all policies of a run play: name -> mean return and its 95 % interval.
        tasks: Of a run that learns several tasks: name -> likewise.
        metrics: Name -> mean of what the environment gave in ``info["metrics"]`` in these episodes; of several tasks
            under ``TASK/NAME``.
    """

    env: str
    checkpoint: str
    agent_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    interval: tuple[float, float]
    frames: int
    seconds: float
    deterministic: bool
    seed: int
    video: str | None = None
    policies: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    tasks: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """Human-normalised scores: of each task that has one (of the only environment, if it does), and their means.

        0 is random play, 1 a person's. ``"mean"``, ``"median"`` and ``"mean_capped"`` are over several tasks which
        all have such scores.
        """
        means = {name: mean for name, (mean, _, _) in self.tasks.items()} or {self.env: self.mean}
        known = {name: mean for name, mean in means.items() if human_normalised(name, mean) is not None}
        found = {name: float(human_normalised(name, mean) or 0.0) for name, mean in known.items()}
        if len(found) == len(means) > 1:
            found |= {
                "mean": float(np.mean(list(found.values()))),
                "median": median(known),
                "mean_capped": mean_capped(known),
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            "env": self.env,
            "checkpoint": self.checkpoint,
            "agent_steps": self.agent_steps,
            "episodes": len(self.returns),
            "mean_return": self.mean,
            "interval_95": list(self.interval),
            "std_return": float(np.std(self.returns)),
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "mean_length": float(np.mean(self.lengths)),
            "frames": self.frames,
            "frames_per_second": self.frames / self.seconds,
            "deterministic": self.deterministic,
            "seed": self.seed,
            "video": self.video,
            "policies": {
                name: {"mean_return": mean, "interval_95": [low, high]}
                for name, (mean, low, high) in self.policies.items()
            },
            "tasks": {
                name: {"mean_return": mean, "interval_95": [low, high]}
                for name, (mean, low, high) in self.tasks.items()
            },
            "scores": self.scores,
            "metrics": {name: value if math.isfinite(value) else None for name, value in self.metrics.items()},
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    @property
    def interval_text(self) -> str:
        """The interval in words; one episode tells nothing about others."""
        low, high = self.interval
        return "of one episode" if len(self.returns) == 1 else f"95 % interval {low:,.2f} to {high:,.2f}"

    def describe(self) -> str:
        """Format the result as text."""
        lines = [
            f"{self.env}: {len(self.returns)} episodes after {self.agent_steps:,} agent steps of training",
            f"  policy  {self.checkpoint}, {'its best' if self.deterministic else 'sampled (exploring)'} actions",
            f"  return  {self.mean:,.2f}   {self.interval_text}   "
            f"smallest {min(self.returns):,.2f}, largest {max(self.returns):,.2f}",
            f"  length  {np.mean(self.lengths):,.1f} agent steps",
            f"  speed   {self.frames / self.seconds:,.0f} frames/s",
        ]
        scores = self.scores
        parts = {**self.policies, **self.tasks}
        width = max(map(len, parts), default=0)
        lines += [
            f"  {name:<{width}}  {mean:,.2f}   95 % interval {low:,.2f} to {high:,.2f}"
            + (f"   human-normalised {scores[name]:.3f}" if name in scores else "")
            for name, (mean, low, high) in parts.items()
        ]
        if not parts and scores:
            lines.append(f"  score   {scores[self.env]:.3f} human-normalised (0 random, 1 a person)")
        if "mean" in scores:
            lines.append(
                f"  scores  human-normalised: mean {scores['mean']:.3f}, median {scores['median']:.3f}, capped at 1 "
                f"{scores['mean_capped']:.3f}"
            )
        width = max(map(len, self.metrics), default=0)
        lines += [f"  metric  {name:<{width}}  {value:,.4g}" for name, value in sorted(self.metrics.items())]
        if self.video is not None:
            lines.append(f"  video   {self.video}")
        return "\n".join(lines)

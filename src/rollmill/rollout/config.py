"""How environments are spread over rollout workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Rollout workers: how many, and how they start.

    Attributes:
        num_workers: Rollout worker processes. "auto": one for each usable core, as the Sample Factory paper recommends
            (appendix B), or as many fewer as divide the environments into whole groups.
        groups_per_worker: Groups on each worker, where ``envs_per_group`` is "auto". 2 is double-buffered sampling:
            one group steps while the other one's actions are computed. 1 switches it off.
        env_threads: Threads of a native vector environment in each group. "auto": 1, because workers already occupy
            every core.
        decorrelate_steps: Groups start with 0 to ``decorrelate_steps`` agent steps of random actions, evenly spread, so
            that their episodes and slots do not end at the same time. "auto": one rollout length, and none in the
            replay regime.
        step_timeout_s: A step of a group that takes longer counts as hung and ends the run. Building a group may take
            two seconds more for each of its environments. A worker that waits, or is stopped by a signal, has the same
            limit for a sign of life (at least five seconds while it waits).
    """

    num_workers: int | Literal["auto"] = "auto"
    groups_per_worker: int = 2
    env_threads: int | Literal["auto"] = "auto"
    decorrelate_steps: int | Literal["auto"] = "auto"
    step_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Raises for values that no run could use."""
        for name in ("num_workers", "groups_per_worker", "env_threads"):
            value = getattr(self, name)
            if value != "auto" and value < 1:
                raise ValueError(f"rollout.{name}={value}: must be at least 1, or 'auto' where that is allowed.")
        if self.decorrelate_steps != "auto" and self.decorrelate_steps < 0:
            raise ValueError(f"rollout.decorrelate_steps={self.decorrelate_steps}: must be 0 (off) or more.")
        if not 0 < self.step_timeout_s < math.inf:
            raise ValueError(f"rollout.step_timeout_s={self.step_timeout_s}: must be positive (seconds).")

"""How environments are spread over rollout workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, Checked, integer


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Checked, section="rollout"):
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

    num_workers: int | Literal["auto"] = setting("auto", integer(1))
    groups_per_worker: int = setting(2, integer(1))
    env_threads: int | Literal["auto"] = setting("auto", integer(1))
    decorrelate_steps: int | Literal["auto"] = setting("auto", integer(0))
    step_timeout_s: float = setting(300.0, ABOVE_ZERO, "(seconds)")

"""A callback that lets a run explore more while its return does not improve.

    rollmill train gym/LunarLander-v3 --callback examples/exploring_callback.py:ExploreWhenStuck

Or in Python: ``rollmill.train("gym/LunarLander-v3", callbacks=[ExploreWhenStuck(patience=100_000)])``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import rollmill


class ExploreWhenStuck(rollmill.Callback):
    """Raises the entropy bonus when the return stalls, and returns it to its schedule when it improves.

    Args:
        patience: Agent steps without a better mean return after which the bonus is raised.
        entropy_coef: The raised bonus.
    """

    def __init__(self, patience: int = 200_000, entropy_coef: float = 0.03) -> None:
        self.patience = patience
        self.entropy_coef = entropy_coef
        self.best, self.improved_at = -math.inf, 0
        self.is_raised = False

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        """Looks at the mean return of the last 100 episodes."""
        steps, mean_return = metrics["agent_steps"], metrics["episode_return"]
        if mean_return is not None and mean_return > self.best:
            self.best, self.improved_at = mean_return, steps
        is_stuck = steps - self.improved_at > self.patience
        if is_stuck != self.is_raised:
            self.is_raised = is_stuck
            run.set(entropy_coef=self.entropy_coef if is_stuck else None)

"""Keeps a policy exploring while its returns show it nothing to prefer.

Where every episode ends with the same return, advantages are the critic's errors. Normalised, they are as large as any
others, and the policy becomes certain of what does not matter: with CartPole's settings Acrobot's entropy fell to 0.001
within 100,000 steps, every episode timed out, and nothing was learned from then on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.learning.report import RECENT_EPISODES
from rollmill.specs import ActionSpec
from rollmill.storage.episodes import EpisodeEnd

__all__ = ["EntropyGuard", "least_entropy"]


def least_entropy(action: ActionSpec, first: float, share: float) -> float:
    """The entropy of a policy that keeps a share of its first exploration, in nats.

    Args:
        action: The action spec.
        first: Its first entropy, in nats; of Gaussians that of their densities, which may be negative.
        share: Above 0: what choices keep of their entropy, and Gaussians of their standard deviation.
    """
    if not action.num_continuous:
        return share * first
    choices = sum(math.log(size) for size in action.categorical_sizes)
    return first - (1.0 - share) * choices + action.num_continuous * math.log(share)


class EntropyGuard:
    """Raises the entropy bonus while the policy is stuck and too certain, and lets it fall again afterwards.

    A policy is stuck when the last 100 episodes all had the worst return of the run. A solved task, whose episodes all
    have the same return as well, has seen worse ones. The bonus follows the entropy as a temperature does (Haarnoja et
    al. 2018, arXiv:1812.05905, section 5), in steps of a factor as the learning rate's KL rule has them. It depends on
    episodes and batches alone, so lockstep stays reproducible.

    Args:
        action: The action spec.
        floor: What a stuck policy keeps of the first batch's entropy: choices this share of it, Gaussians this share of
            their standard deviation. 0 switches the guard off.

    Attributes:
        is_stuck: Whether it was at the last call of :meth:`observe`.
    """

    FACTOR = 1.5
    # With advantages of deviation 1, a bonus of 0.3 outweighs them in any action space of a few choices.
    MOST = 0.3
    # What is raised where the preset has no bonus.
    LEAST = 1e-3

    def __init__(self, action: ActionSpec, floor: float) -> None:
        self._floor = floor
        self._action = action
        self._first_entropy: float | None = None
        self._worst = math.inf
        self._knows_worst = True
        self._factor = 1.0
        self.is_stuck = False

    def observe(self, ended: Sequence[EpisodeEnd], recent: Sequence[EpisodeEnd]) -> None:
        """Takes in the episodes that ended since the last call, and the last 100, these included."""
        if not self._floor or not recent:
            return
        # All recent ones, of which the first may be of before a resume.
        seen = [episode.episode_return for episode in (*ended, *recent)]
        self._knows_worst = self._knows_worst or min(*seen, self._worst) < max(seen)
        self._worst = min(self._worst, *seen)
        is_worst = len(recent) >= RECENT_EPISODES and all(e.episode_return <= self._worst for e in recent)
        self.is_stuck = is_worst and self._knows_worst

    def resume_without_state(self) -> None:
        """Continues a run of a version that had no guard: it is not stuck before it has seen returns that differ.

        Nothing says whether returns that are all equal are the run's worst ones, or those of a solved task.
        """
        self._knows_worst = False

    def coefficient(self, base: float) -> float:
        """The entropy bonus' weight, given the schedule's."""
        if self._factor == 1.0:
            return base
        return max(base, min(max(base, self.LEAST) * self._factor, self.MOST))

    @property
    def is_asking(self) -> bool:
        """Whether :meth:`update` would change anything; reading an entropy waits for the device."""
        return bool(self._floor) and (self._first_entropy is None or self.is_stuck or self._factor > 1.0)

    def update(self, entropy: float, base: float = 0.0) -> None:
        """Takes note of the policy's mean entropy after a batch.

        Args:
            entropy: Nats.
            base: The entropy bonus' weight by its schedule, as for :meth:`coefficient`.
        """
        if self._first_entropy is None:
            self._first_entropy = entropy
        # What grows beyond the greatest bonus would have to fall again before the bonus does.
        most = max(1.0, self.MOST / max(base, self.LEAST))
        if self.is_stuck and entropy < least_entropy(self._action, self._first_entropy, self._floor):
            self._factor = min(self._factor * self.FACTOR, most)
        else:
            self._factor = max(min(self._factor, most) / self.FACTOR, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: plain numbers."""
        return {
            "first_entropy": self._first_entropy,
            "worst": self._worst,
            "knows_worst": self._knows_worst,
            "factor": self._factor,
            "is_stuck": self.is_stuck,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from ``state``."""
        self._first_entropy = state["first_entropy"]
        self._worst, self._factor = float(state["worst"]), float(state["factor"])
        self._knows_worst = bool(state.get("knows_worst", True))
        self.is_stuck = bool(state["is_stuck"])

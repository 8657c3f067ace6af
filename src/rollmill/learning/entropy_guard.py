"""Keeps a policy exploring while all its returns are equal.

If every episode has the same return, advantages are the critic's errors. Normalised, they are as large as any others,
and the policy becomes certain about irrelevant choices: with CartPole's settings Acrobot's entropy fell to 0.001 within
100,000 steps, every episode timed out, and learning stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rollmill.learning.report import RECENT_EPISODES
from rollmill.specs import ActionSpec
from rollmill.storage.episodes import EpisodeEnd


def least_entropy(action: ActionSpec, first: float, share: float) -> float:
    """Return the entropy, in nats, of a policy that keeps a share of its initial exploration.

    Args:
        action: The action spec.
        first: Initial entropy in nats; for Gaussians the differential entropy, which may be negative.
        share: Share to keep, above 0: of the entropy for choices, of the standard deviation for Gaussians.
    """
    if not action.num_continuous:
        return share * first
    choices = sum(math.log(size) for size in action.categorical_sizes)
    return first - (1.0 - share) * choices + action.num_continuous * math.log(share)


class EntropyGuard:
    """Raises the entropy bonus while the policy is stuck and too certain, and lowers it again afterwards.

    A policy is stuck if the last 100 episodes all had the worst return of the run. In a solved task all episodes have
    the same return, too, but there were worse ones before. The bonus follows the entropy as a temperature does
    (Haarnoja et al. 2018, arXiv:1812.05905, section 5), in multiplicative steps as in the KL rule of the learning rate.
    It depends on episodes and batches only, so lockstep stays reproducible.

    Args:
        action: The action spec.
        floor: Share of the first batch's entropy that a stuck policy keeps (choices), or of
            the standard deviation (Gaussians). 0 disables the guard.

    Attributes:
        is_stuck: Whether the policy was stuck at the last call of :meth:`observe`.
    """

    FACTOR = 1.5
    # With advantages of deviation 1, a bonus of 0.3 outweighs them in any action space of a few choices.
    MOST = 0.3
    # Base of the bonus if the preset has none.
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
        """Observe the episodes that ended since the last call, and the last 100 episodes including these."""
        if not self._floor or not recent:
            return
        # Uses all recent episodes: the first ones may precede a resume.
        seen = [episode.episode_return for episode in (*ended, *recent)]
        self._knows_worst = self._knows_worst or min(*seen, self._worst) < max(seen)
        self._worst = min(self._worst, *seen)
        is_worst = len(recent) >= RECENT_EPISODES and all(e.episode_return <= self._worst for e in recent)
        self.is_stuck = is_worst and self._knows_worst

    def resume_without_state(self) -> None:
        """Resume a run of a version without a guard: not stuck until returns differ.

        Equal returns may be the run's worst, or those of a solved task.
        """
        self._knows_worst = False

    def coefficient(self, base: float) -> float:
        """Return the weight of the entropy bonus, given the schedule's."""
        if self._factor == 1.0:
            return base
        return max(base, min(max(base, self.LEAST) * self._factor, self.MOST))

    @property
    def is_asking(self) -> bool:
        """Whether :meth:`update` would change anything; reading an entropy waits for the device."""
        return bool(self._floor) and (self._first_entropy is None or self.is_stuck or self._factor > 1.0)

    def update(self, entropy: float, base: float = 0.0) -> None:
        """Observe the policy's mean entropy after a batch.

        Args:
            entropy: Entropy in nats.
            base: The scheduled weight of the entropy bonus, as for :meth:`coefficient`.
        """
        if self._first_entropy is None:
            self._first_entropy = entropy
        # Clamped, because growth beyond the largest bonus would delay its fall.
        most = max(1.0, self.MOST / max(base, self.LEAST))
        if self.is_stuck and entropy < least_entropy(self._action, self._first_entropy, self._floor):
            self._factor = min(self._factor * self.FACTOR, most)
        else:
            self._factor = max(min(self._factor, most) / self.FACTOR, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain numbers."""
        return {
            "first_entropy": self._first_entropy,
            "worst": self._worst,
            "knows_worst": self._knows_worst,
            "factor": self._factor,
            "is_stuck": self.is_stuck,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``."""
        self._first_entropy = state["first_entropy"]
        self._worst, self._factor = float(state["worst"]), float(state["factor"])
        self._knows_worst = bool(state.get("knows_worst", True))
        self.is_stuck = bool(state["is_stuck"])

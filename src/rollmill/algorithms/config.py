"""The configuration that all algorithms have. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from dataclasses import dataclass

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, UNIT, Checked, integer


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Checked, section="learner"):
    """What an algorithm learns from.

    Attributes:
        batch_size: Samples (agent steps) of one batch, all its minibatches together. In the replay regime transitions,
            or sequences where those are learned from.
        discount: Gamma, for each agent step (not frame).
        reward_scale: Factor on rewards, applied before clipping.
        reward_clip: Scaled rewards are clipped to [-reward_clip, reward_clip]; ``None`` does not
            (Sample Factory clips at 1000).
    """

    batch_size: int = setting(1024, integer(1))
    discount: float = setting(0.99, UNIT)
    reward_scale: float = setting(1.0, ABOVE_ZERO)
    reward_clip: float | None = setting(None, ABOVE_ZERO, "to switch it off")

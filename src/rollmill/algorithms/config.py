"""The configuration that all algorithms have. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from dataclasses import dataclass

from rollmill.models.config import ModelConfig
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, UNIT, Checked, integer
from rollmill.specs import ActionSpec, BoxActions


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

    def box_actions(self, model: ModelConfig) -> BoxActions:
        """How the data plane maps a network's real actions to the environment's bounds."""
        return model.box_actions

    def stored_action(self, model: ModelConfig, action: ActionSpec) -> ActionSpec:
        """The action as slots hold it: in [-1, 1] where the data plane scales it to the environment's bounds."""
        return action.in_unit_box if self.box_actions(model) == "scale" else action

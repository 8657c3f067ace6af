"""Ensembles of Q-functions of a given continuous action, or of every choice."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import set_channels_last
from rollmill.models.mlp import MLP
from rollmill.models.q_network import Branches
from rollmill.specs import ActionSpec


class Critics(nn.Module):
    """Q_1(x, a), ..., Q_E(x, a): the encoder's features and the action through E perceptrons ``mlp_sizes``.

    The encoder and the hidden layers respect autocast; the last layer computes in float32.

    Args:
        encoder: Encoder of the observation, shared by all critics.
        width: Width of its features.
        action_size: C.
        members: E.
        config: Result of :func:`rollmill.models.off_policy.off_policy_model`.
    """

    def __init__(self, encoder: nn.Module, width: int, action_size: int, members: int, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(width + action_size, 1, config, members=members)
        set_channels_last(self, True)

    def forward(self, observation: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Map name -> ``[N, ...]`` and float32 ``[N, C]`` to float32 ``[E, N]``."""
        return self.rate(self.encoder(observation), action)

    def rate(self, features: Tensor, action: Tensor, *, frozen: bool = False, members: int | None = None) -> Tensor:
        """Evaluate the critics on the encoder's features.

        Args:
            features: ``[N, F]``.
            action: float32 ``[N, C]``.
            frozen: Whether the weights get no gradient.
            members: Number of leading critics to evaluate; None is all.
        """
        x = torch.cat([features.to(action.dtype), action], -1)
        values: Tensor = self.mlp(x, frozen=frozen, members=members)
        return values.squeeze(-1)


class ChoiceCritics(nn.Module):
    """Q_1(x, .), ..., Q_E(x, .) of every choice: the encoder's features through E perceptrons ``mlp_sizes``.

    Args:
        encoder: Encoder of the observation, shared by all critics.
        width: Of its features.
        action: Categorical heads only.
        members: E.
        config: Result of :func:`rollmill.models.off_policy.off_policy_model`.
    """

    def __init__(self, encoder: nn.Module, width: int, action: ActionSpec, members: int, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(width, action.mask_size, config, members=members)
        self.branches = Branches(action.categorical_sizes)
        set_channels_last(self, True)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Map name -> ``[N, ...]`` to float32 ``[E, N, K, n]``; see :class:`rollmill.models.q_network.Branches`."""
        values: Tensor = self.mlp(self.encoder(observation))
        return self.branches.split(values)

"""Base class of soft actor-critics: three objectives and a temperature."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Loss, Objective, OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import SoftConfig
from rollmill.losses.sac import temperature_loss
from rollmill.models.actors import ActorNetwork


class Temperature(nn.Module):
    """SAC's temperature alpha, learned as its logarithm, or constant.

    Args:
        config: The algorithm's configuration.

    Attributes:
        log: Log alpha, scalar; minus infinity for an alpha of 0.
        is_learned: Whether ``log`` is a parameter, rather than a buffer.
    """

    log: Tensor

    def __init__(self, config: SoftConfig) -> None:
        super().__init__()
        self.is_learned = config.temperature == "auto"
        start = config.initial_temperature if config.temperature == "auto" else config.temperature
        log = torch.tensor(math.log(start) if start > 0.0 else -math.inf)
        if self.is_learned:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)

    def forward(self) -> Tensor:
        """Alpha, scalar, without gradient."""
        return self.log.detach().exp()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load only what was learned: a constant is a setting, and from an alpha of 0 nothing could be learned."""
        name = f"{prefix}log"
        if name in state_dict and not (self.is_learned and bool(state_dict[name].isfinite())):
            state_dict = {**state_dict, name: self.log.detach()}
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class SoftActorCritic(OffPolicyAlgorithm):
    """Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, algorithm 1).

    A subclass builds ``acting``, ``critics``, ``target_critics`` and ``temperature``, and implements the losses.
    """

    acting: ActorNetwork
    config: SoftConfig
    critics: nn.Module
    target_critics: nn.Module
    temperature: Temperature
    _excess: tuple[TransitionBatch, Tensor] | None = None

    def objectives(self) -> Sequence[Objective]:
        """Return the objectives of critics, actor (with the new critics) and temperature."""
        config = self.config
        every = self.policy_delay
        objectives = [
            Objective("critic", list(self.critics.parameters()), self.critic_loss, None),
            Objective("actor", self.acting.own_parameters(), self.actor_loss, config.actor_learning_rate, every),
        ]
        if self.temperature.is_learned:
            parameters = list(self.temperature.parameters())
            rate = config.temperature_learning_rate
            objectives.append(Objective("temperature", parameters, self.temperature_loss, rate, every))
        return objectives

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Return the critics and their targets."""
        return [(self.critics, self.target_critics)]

    @abstractmethod
    def critic_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The soft Bellman residual (equation 5)."""

    @abstractmethod
    def actor_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The policy's loss (equation 9); it stores the policy's entropy for :meth:`temperature_loss`."""

    @abstractmethod
    def excess_entropy(self, batch: TransitionBatch, generator: torch.Generator | None) -> Tensor:
        """The policy's entropy minus its target, ``[N]``; used if :meth:`actor_loss` has stored none."""

    def temperature_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The temperature's loss (equation 18), for the policy before the actor's step, as in SB3."""
        excess = self._excess[1] if self._excess is not None and self._excess[0] is batch else None
        self._excess = None
        if excess is None:
            with torch.no_grad():
                excess = self.excess_entropy(batch, generator)
        loss = temperature_loss(self.temperature.log, excess)
        return Loss(loss, None, {"temperature": self.temperature()})

    def leave_excess_entropy(self, batch: TransitionBatch, excess: Tensor) -> None:
        """Store the entropy for the temperature's objective, which uses the same policy and observations."""
        self._excess = (batch, excess.detach()) if self.temperature.is_learned else None

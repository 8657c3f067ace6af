"""Soft actor-critic for real numbers, with a learned temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, Loss, Objective, OffPolicyAlgorithm, TransitionBatch
from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.requirements import require_bounded_box
from rollmill.losses.sac import sac_actor_loss, soft_value, temperature_loss
from rollmill.losses.temporal_difference import bootstrap_target, temporal_difference_loss
from rollmill.models.actors import ActorNetwork, SampledAction, squashed_gaussian
from rollmill.models.config import ModelConfig
from rollmill.models.critics import Critics
from rollmill.models.off_policy import frozen_copy, make_input_encoder, off_policy_model
from rollmill.specs import ActionSpec, ArraySpec

__all__ = ["SAC"]


class SAC(OffPolicyAlgorithm):
    """Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, algorithm 1), whose policy explores.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: What networks.
        config: What is learned.

    Attributes:
        log_temperature: Log alpha, scalar; a parameter where it is learned, else a buffer.

    Raises:
        ValueError: An action has choices or no bounds, or the networks are asked for what they do not have.
    """

    acting: ActorNetwork

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OffPolicyConfig,
    ) -> None:
        require_bounded_box("SAC", action)
        super().__init__(observation, action, model, config)
        model = off_policy_model(model)
        size = action.num_continuous
        encoder, width = make_input_encoder(observation, action, model)
        self.critics = Critics(encoder, width, size, config.num_critics, model)
        if not model.shared:
            encoder, width = make_input_encoder(observation, action, model)
        self.acting = ActorNetwork(encoder, width, 2 * size, model, is_shared=model.shared)
        self.target_critics = frozen_copy(self.critics)
        self.log_std_bounds = model.log_std_bounds
        self.temperature = Temperature(config)
        self.target_entropy = -float(size) if config.target_entropy == "auto" else config.target_entropy
        self._policy: tuple[TransitionBatch, Tensor] | None = None

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        params = self.acting(observation)
        mean = params.chunk(2, -1)[0]
        if explore is None:
            return Action(None, mean.tanh())
        if explore.agent_steps < self.config.random_steps:
            uniform = torch.rand(mean.shape, generator=explore.generator, device=mean.device)
            return Action(None, uniform * 2.0 - 1.0)
        return Action(None, self._sample(params, explore.generator).action)

    def objectives(self) -> Sequence[Objective]:
        """Critics, then the actor against the new critics, then the temperature."""
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
        """The critics'."""
        return [(self.critics, self.target_critics)]

    def critic_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The soft Bellman residual (equation 5)."""
        with torch.no_grad():
            action, log_prob = self._sample(self.acting(batch.next_observation), generator)
            next_q = self.target_critics(batch.next_observation, action)
            next_value = soft_value(next_q, log_prob, self.temperature())
            target = bootstrap_target(batch.reward, batch.discount, next_value)
        q = self.critics(batch.observation, batch.continuous)
        loss, error = temporal_difference_loss(q, target, batch.weight, self.config.value_loss or "mse")
        return Loss(loss, error, {"q": q.detach().mean(), "td_error": error.mean()})

    def actor_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The policy's (equation 9)."""
        features = self.acting.encode(batch.observation)
        action, log_prob = self._sample(self.acting.mlp(features), generator)
        entropy = -log_prob.detach()
        # The temperature's loss, which comes next, needs the entropy of the same policy.
        self._policy = (batch, entropy)
        if not self.acting.is_shared:
            with torch.no_grad():
                features = self.critics.encoder(batch.observation)
        q = self.critics.rate(features, action, frozen=True)
        loss = sac_actor_loss(q, log_prob, self.temperature().detach())
        return Loss(loss, None, {"actor_loss": loss.detach(), "entropy": entropy.mean()})

    def temperature_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The temperature's (equation 18)."""
        entropy = self._policy[1] if self._policy is not None and self._policy[0] is batch else None
        self._policy = None
        if entropy is None:
            with torch.no_grad():
                entropy = -self._sample(self.acting(batch.observation), generator).log_prob
        loss = temperature_loss(self.temperature.log, entropy, self.target_entropy)
        return Loss(loss, None, {"temperature": self.temperature().detach()})

    def _sample(self, params: Tensor, generator: torch.Generator | None) -> SampledAction:
        shape = (len(params), self.action_spec.num_continuous)
        normal = torch.randn(shape, generator=generator, device=params.device, dtype=params.dtype)
        return squashed_gaussian(params, normal, self.log_std_bounds)


class Temperature(nn.Module):
    """SAC's temperature alpha, learned as its logarithm or constant.

    Args:
        config: Says which.

    Attributes:
        log: Log alpha, scalar; minus infinity for an alpha of 0.
        is_learned: Whether it is a parameter.
    """

    log: Tensor

    def __init__(self, config: OffPolicyConfig) -> None:
        super().__init__()
        self.is_learned = config.temperature == "auto"
        start = config.initial_temperature if config.temperature == "auto" else config.temperature
        log = torch.tensor(math.log(start) if start > 0.0 else -math.inf)
        if self.is_learned:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)

    def forward(self) -> Tensor:
        """Alpha, scalar."""
        return self.log.exp()

"""Soft actor-critic for continuous actions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.algorithms.base import Action, Explore, Loss
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.exploration import PinkNoise, uniform_actions
from rollmill.algorithms.off_policy_config import SoftConfig
from rollmill.algorithms.requirements import require_bounded_box
from rollmill.algorithms.soft_actor_critic import SoftActorCritic, Temperature
from rollmill.losses.sac import soft_value
from rollmill.losses.temporal_difference import bootstrap_target, temporal_difference_loss
from rollmill.models.actors import ActorNetwork, SampledAction, squashed_gaussian
from rollmill.models.config import ModelConfig
from rollmill.models.critics import Critics
from rollmill.models.off_policy import frozen_copy, make_input_encoder, off_policy_model
from rollmill.specs import ActionSpec, ArraySpec


class SAC(SoftActorCritic):
    """Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, algorithm 1).

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Attributes:
        target_entropy: Target entropy of the squashed Gaussian, in nats.

    Raises:
        ValueError: The action has categorical heads or no bounds, or the configuration asks for unsupported networks.
    """

    critics: Critics

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: SoftConfig,
    ) -> None:
        require_bounded_box("SAC", action)
        super().__init__(observation, action, model, config)
        model = off_policy_model(model)
        size = action.num_continuous
        encoder, width = make_input_encoder(observation, action, model)
        self.critics = Critics(encoder, width, size, config.num_critics, model)
        is_shared = model.shares_encoder(observation)
        if not is_shared:
            encoder, width = make_input_encoder(observation, action, model)
        self.acting = ActorNetwork(encoder, width, 2 * size, model, is_shared=is_shared)
        self.target_critics = frozen_copy(self.critics)
        self.log_std_bounds = model.log_std_bounds
        self.temperature = Temperature(config)
        self.pink = PinkNoise(size) if config.noise_kind == "pink" else None
        self.target_entropy = -float(size) if config.target_entropy == "auto" else config.target_entropy

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        params = self.acting(observation)
        mean = params.chunk(2, -1)[0]
        if explore is None:
            return Action(None, mean.tanh())
        if explore.agent_steps < self.config.random_steps:
            return Action(None, uniform_actions(mean, explore.generator))
        if self.pink is not None:
            normal = self.pink(explore).to(params.dtype)
            return Action(None, squashed_gaussian(params, normal, self.log_std_bounds).action)
        return Action(None, self._sample(params, explore.generator).action)

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
        """The policy's loss (equation 9)."""
        features = self.acting.encode(batch.observation)
        action, log_prob = self._sample(self.acting.mlp(features), generator)
        entropy = -log_prob.detach()
        self.leave_excess_entropy(batch, entropy - self.target_entropy)
        if not self.acting.is_shared:
            with torch.no_grad():
                features = self.critics.encoder(batch.observation)
        q = self.critics.rate(features, action, frozen=True)
        loss = -soft_value(q, log_prob, self.temperature()).mean()
        return Loss(loss, None, {"actor_loss": loss.detach(), "entropy": entropy.mean()})

    def excess_entropy(self, batch: TransitionBatch, generator: torch.Generator | None) -> Tensor:
        """``-log pi(a | x) - target`` of a sampled action."""
        return -self._sample(self.acting(batch.observation), generator).log_prob - self.target_entropy

    def _sample(self, params: Tensor, generator: torch.Generator | None) -> SampledAction:
        shape = (len(params), self.action_spec.num_continuous)
        normal = torch.randn(shape, generator=generator, device=params.device, dtype=params.dtype)
        return squashed_gaussian(params, normal, self.log_std_bounds)

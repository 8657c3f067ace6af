"""Soft actor-critic for choices."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.algorithms.base import Action, Explore, Loss
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.exploration import random_choices
from rollmill.algorithms.off_policy_config import SoftConfig
from rollmill.algorithms.requirements import require_categorical
from rollmill.algorithms.soft_actor_critic import SoftActorCritic, Temperature
from rollmill.losses.dqn import taken_values
from rollmill.losses.sac import policy_entropy, soft_value_of_choices
from rollmill.losses.temporal_difference import bootstrap_target, temporal_difference_loss
from rollmill.models.actors import ActorNetwork
from rollmill.models.config import ModelConfig
from rollmill.models.critics import ChoiceCritics
from rollmill.models.distributions import perturbed
from rollmill.models.off_policy import frozen_copy, make_input_encoder, off_policy_model
from rollmill.models.q_network import Branches
from rollmill.specs import ActionSpec, ArraySpec

_TARGET_SHARE = 0.89  # of the maximum entropy, as in CleanRL's sac_atari.py


class DiscreteSAC(SoftActorCritic):
    """Soft actor-critic for choices (Christodoulou 2019, https://arxiv.org/abs/1910.07207).

    The stochastic policy explores. Several categorical heads have independent policies and separate values; every
    head's target is the mean of all heads' values.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Raises:
        ValueError: The action has continuous heads, or the configuration asks for unsupported networks.
    """

    critics: ChoiceCritics

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: SoftConfig,
    ) -> None:
        require_categorical("SAC for choices", action)
        super().__init__(observation, action, model, config)
        model = off_policy_model(model)
        encoder, width = make_input_encoder(observation, action, model)
        self.critics = ChoiceCritics(encoder, width, action, config.num_critics, model)
        is_shared = model.shares_encoder(observation)
        if not is_shared:
            encoder, width = make_input_encoder(observation, action, model)
        self.acting = ActorNetwork(encoder, width, action.mask_size, model, is_shared=is_shared)
        self.branches = Branches(action.categorical_sizes)
        self.target_critics = frozen_copy(self.critics)
        self.temperature = Temperature(config)

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        logits = self._logits(observation, action_mask)
        if explore is None:
            choice = logits.argmax(-1)
        elif explore.agent_steps < self.config.random_steps:
            choice = random_choices(self.branches.allowed(action_mask, len(logits)), explore.generator)
        else:
            exponential = torch.empty_like(logits).exponential_(generator=explore.generator)
            choice = perturbed(logits, exponential).argmax(-1)
        return Action(choice.to(torch.int32), None)

    def critic_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The soft Bellman residual, with the expectation over the policy's choices."""
        assert batch.discrete is not None
        with torch.no_grad():
            log_policy = self._logits(batch.next_observation, batch.next_action_mask).log_softmax(-1)
            next_q = self.target_critics(batch.next_observation)
            next_value = soft_value_of_choices(next_q, log_policy, self.temperature())
            target = bootstrap_target(batch.reward, batch.discount, next_value)
        q = self.critics(batch.observation)
        taken = taken_values(q, batch.discrete.expand(len(q), -1, -1)).transpose(1, 2)
        loss, error = temporal_difference_loss(taken, target, batch.weight, self.config.value_loss or "mse")
        statistics = {"q": taken.detach().mean(), "td_error": error.mean()}
        return Loss(loss / self.branches.heads, error, statistics)

    def actor_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The policy's loss (equation 12)."""
        log_policy = self._logits(batch.observation, batch.action_mask).log_softmax(-1)
        with torch.no_grad():
            q = self.critics(batch.observation)
            entropy = policy_entropy(log_policy)
            self.leave_excess_entropy(batch, entropy - self.target_entropy(batch.action_mask))
        loss = -soft_value_of_choices(q, log_policy, self.temperature()).mean()
        return Loss(loss, None, {"actor_loss": loss.detach(), "entropy": entropy.mean()})

    def excess_entropy(self, batch: TransitionBatch, generator: torch.Generator | None) -> Tensor:
        """The policy's entropy minus its target."""
        log_policy = self._logits(batch.observation, batch.action_mask).log_softmax(-1)
        return policy_entropy(log_policy) - self.target_entropy(batch.action_mask)

    def target_entropy(self, mask: Tensor | None) -> Tensor | float:
        """Target in nats; ``[N]`` with masks, because the maximum entropy depends on the allowed choices."""
        if self.config.target_entropy != "auto":
            return self.config.target_entropy
        exists = self.branches.exists.unsqueeze(0)
        allowed = exists if mask is None else self.branches.allowed(mask, len(mask))
        return _TARGET_SHARE * allowed.sum(-1).log().sum(-1)

    def _logits(self, observation: Mapping[str, Tensor], mask: Tensor | None) -> Tensor:
        """Logits ``[N, K, n]``; FORBIDDEN for forbidden choices."""
        return self.branches.restrict(self.branches.split(self.acting(observation)), mask)

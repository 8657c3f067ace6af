"""Deep Q-learning, its double and dueling variants, of one categorical head or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, Loss, Objective, OffPolicyAlgorithm, TransitionBatch
from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.exploration import epsilon_greedy, epsilon_of
from rollmill.algorithms.requirements import require_categorical
from rollmill.losses.dqn import double_q_value, max_q_value, taken_values
from rollmill.losses.temporal_difference import bootstrap_target, temporal_difference_loss
from rollmill.models.config import ModelConfig
from rollmill.models.off_policy import frozen_copy, off_policy_model
from rollmill.models.q_network import QNetwork
from rollmill.specs import ActionSpec, ArraySpec

__all__ = ["DQN"]


class DQN(OffPolicyAlgorithm):
    """Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236), with epsilon-greedy exploration.

    A variant changes :meth:`target`, or :meth:`loss` as a whole.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: What network.
        config: What is learned.

    Raises:
        ValueError: An action has real numbers, or the network is asked for what it does not have.
    """

    published_tau = 1.0
    acting: QNetwork

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OffPolicyConfig,
    ) -> None:
        require_categorical("DQN", action)
        super().__init__(observation, action, model, config)
        self.acting = QNetwork(observation, action, off_policy_model(model), dueling=config.dueling)
        self.target_network = frozen_copy(self.acting)

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        choice = self.values(self.acting, observation, action_mask).argmax(-1)
        if explore is not None:
            allowed = self.acting.branches.allowed(action_mask, len(choice))
            choice = epsilon_greedy(choice, allowed, epsilon_of(self.config, explore), explore.generator)
        return Action(choice.to(torch.int32), None)

    def values(self, network: nn.Module, observation: Mapping[str, Tensor], mask: Tensor | None) -> Tensor:
        """Q of every choice, float32 ``[N, K, n]``; -1e9 where a choice is not allowed."""
        return self.acting.branches.restrict(network(observation), mask)

    def objectives(self) -> Sequence[Objective]:
        """The one of the Q-network."""
        return [Objective("q", list(self.acting.parameters()), self.loss, None)]

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """The Q-network's."""
        return [(self.acting, self.target_network)]

    @torch.no_grad()
    def target(self, batch: TransitionBatch) -> Tensor:
        """What Q(x_t, a_t) is drawn to, ``[N]``."""
        next_q = self.values(self.target_network, batch.next_observation, batch.next_action_mask)
        if self.config.double:
            online_q = self.values(self.acting, batch.next_observation, batch.next_action_mask)
            return bootstrap_target(batch.reward, batch.discount, double_q_value(online_q, next_q))
        return bootstrap_target(batch.reward, batch.discount, max_q_value(next_q))

    def loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The temporal differences', the mean over heads where there are several (Tavakoli et al. 2018, equation 9)."""
        assert batch.discrete is not None
        target = self.target(batch)
        q = taken_values(self.acting(batch.observation), batch.discrete).t()
        loss, error = temporal_difference_loss(q, target, batch.weight, self.config.value_loss or "huber")
        statistics = {"q": q.detach().mean(), "td_error": error.mean()}
        return Loss(loss / len(q), error, statistics)

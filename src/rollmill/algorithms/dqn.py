"""Deep Q-learning, its double and dueling variants, for one or several categorical heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, Loss
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.q_learning import QLearning
from rollmill.losses.dqn import taken_values
from rollmill.losses.temporal_difference import temporal_difference_loss


class DQN(QLearning):
    """Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236), with epsilon-greedy exploration.

    A variant overrides :meth:`target` or :meth:`loss`. For recurrent networks, see
    :class:`rollmill.algorithms.recurrent_dqn.RecurrentDQN`.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The network's configuration.
        config: The algorithm's configuration.

    Raises:
        ValueError: The action has continuous heads, or the configuration asks for an unsupported network.
    """

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        return self.choose(self.acting(observation), action_mask, explore)

    def values(self, network: nn.Module, observation: Mapping[str, Tensor], mask: Tensor | None) -> Tensor:
        """Q of every choice, float32 ``[N, K, n]``; FORBIDDEN for forbidden choices."""
        return self.acting.branches.restrict(network(observation), mask)

    @torch.no_grad()
    def target(self, batch: TransitionBatch) -> Tensor:
        """Target of Q(x_t, a_t), ``[N]``."""
        next_q = self.values(self.target_network, batch.next_observation, batch.next_action_mask)
        online_q = None
        if self.config.double:
            online_q = self.values(self.acting, batch.next_observation, batch.next_action_mask)
        return self.bootstrap(batch.reward, batch.discount, next_q, online_q)

    def loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The temporal-difference loss, a mean over several heads (Tavakoli et al. 2018, equation 9)."""
        assert batch.discrete is not None
        target = self.target(batch)
        q = taken_values(self.acting(batch.observation), batch.discrete).t()
        loss, error = temporal_difference_loss(q, target, batch.weight, self.config.value_loss or "huber")
        statistics = {"q": q.detach().mean(), "td_error": error.mean()}
        return Loss(loss / len(q), error, statistics)

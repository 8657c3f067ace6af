"""Base class of deep Q-learning from single transitions and from sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, Loss, Objective, OffPolicyAlgorithm
from rollmill.algorithms.exploration import epsilon_greedy, epsilon_of
from rollmill.algorithms.off_policy_config import QLearningConfig
from rollmill.algorithms.requirements import require_categorical
from rollmill.losses.dqn import double_q_value, max_q_value, rescale, unscale
from rollmill.losses.temporal_difference import bootstrap_target
from rollmill.models.config import ModelConfig
from rollmill.models.off_policy import frozen_copy, off_policy_model
from rollmill.models.q_network import QNetwork
from rollmill.specs import ActionSpec, ArraySpec


class QLearning(OffPolicyAlgorithm):
    """A Q-network, its target network, and epsilon-greedy exploration.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The network's configuration.
        config: The algorithm's configuration.
        may_be_recurrent: Whether the network may have a core.

    Raises:
        ValueError: The action has continuous heads, or the configuration asks for an unsupported network.
    """

    published_tau = 1.0
    acting: QNetwork
    config: QLearningConfig

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: QLearningConfig,
        *,
        may_be_recurrent: bool = False,
    ) -> None:
        require_categorical("DQN", action)
        super().__init__(observation, action, model, config)
        model = off_policy_model(model, may_be_recurrent=may_be_recurrent)
        self.acting = QNetwork(observation, action, model, dueling=config.dueling)
        self.target_network = frozen_copy(self.acting)

    @abstractmethod
    def loss(self, batch: Any, generator: torch.Generator | None) -> Loss:
        """The temporal-difference loss of a batch."""

    def objectives(self) -> Sequence[Objective]:
        """Return the Q-network's objective."""
        return [Objective("q", list(self.acting.parameters()), self.loss, None)]

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Return the Q-network and its target."""
        return [(self.acting, self.target_network)]

    def choose(self, q: Tensor, mask: Tensor | None, explore: Explore | None) -> Action:
        """Choose the largest values, or epsilon-greedily; ``q`` is ``[N, K, n]``."""
        choice = self.acting.branches.restrict(q, mask).argmax(-1)
        if explore is not None:
            allowed = self.acting.branches.allowed(mask, len(choice))
            choice = epsilon_greedy(choice, allowed, epsilon_of(self.config, explore), explore.generator)
        return Action(choice.to(torch.int32), None)

    def bootstrap(self, reward: Tensor, discount: Tensor, next_q: Tensor, online_q: Tensor | None) -> Tensor:
        """Target of Q(x_t, a_t), ``[N]``.

        Args:
            reward: ``[N]``, over k steps.
            discount: ``[N]``, gamma^k, 0 where the episode terminated.
            next_q: ``[N, K, n]``, the target network's values of x_{t+k}.
            online_q: The online network's values, which select the action; None selects by ``next_q``.
        """
        if self.config.value_rescaling:
            next_q = unscale(next_q)
        value = max_q_value(next_q) if online_q is None else double_q_value(online_q, next_q)
        target = bootstrap_target(reward, discount, value)
        return rescale(target) if self.config.value_rescaling else target

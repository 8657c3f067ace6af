"""Deep Q-learning with a recurrent network, from sequences with burn-in (R2D2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.algorithms.base import Action, Explore, Loss
from rollmill.algorithms.batches import SequenceBatch
from rollmill.algorithms.off_policy_config import QLearningConfig
from rollmill.algorithms.q_learning import QLearning
from rollmill.losses.dqn import taken_values
from rollmill.losses.temporal_difference import sequence_error, temporal_difference_loss
from rollmill.models.config import ModelConfig
from rollmill.models.q_network import QNetwork
from rollmill.specs import ActionSpec, ArraySpec


class RecurrentDQN(QLearning):
    """R2D2 (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX), with DQN's options.

    The recurrent state starts from the policy worker's stored state, which is as stale as the sequence is old; the
    online and the target network then refresh it over the burn-in, each separately and without gradient. Deviations:
    double and dueling, n and the value rescaling are options here, as in DQN; the network does not see the previous
    action and reward; sequences continue across the ends of episodes, where the state is reset.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The network's configuration, with a core.
        config: The algorithm's configuration.

    Raises:
        ValueError: The action has continuous heads, or the configuration asks for an unsupported network.
    """

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: QLearningConfig,
    ) -> None:
        super().__init__(observation, action, model, config, may_be_recurrent=True)
        self.state_size = self.acting.state_size

    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        return self.act_with_state(observation, None, None, action_mask, explore)[0]

    @torch.no_grad()
    def act_with_state(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor | None,
        action_mask: Tensor | None,
        explore: Explore | None,
    ) -> tuple[Action, Tensor | None]:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act_with_state`."""
        q, state = self.acting.step(observation, state, reset)
        return self.choose(q, action_mask, explore), state

    def loss(self, batch: SequenceBatch, generator: torch.Generator | None) -> Loss:
        """The temporal-difference loss, a mean over the valid learned steps and over heads."""
        assert batch.discrete is not None
        length, rows = batch.reward.shape
        window = len(batch.reset) - batch.burn_in
        # Double Q-learning selects by the online network; otherwise only the target network sees later steps.
        q = self._unroll(self.acting, batch, window if self.config.double else length)
        with torch.no_grad():
            next_q = self._unroll(self.target_network, batch, window)
            target = self._target(batch, next_q, q.detach() if self.config.double else None)
        learned = slice(batch.burn_in, batch.burn_in + length)
        taken = taken_values(q[:length].flatten(0, 1), batch.discrete[learned].flatten(0, 1)).t()
        # Rescale the mean over all steps to a mean over valid steps.
        share = batch.valid / batch.valid.float().mean().clamp(min=1.0 / batch.valid.numel())
        loss, error = temporal_difference_loss(
            taken, target, (batch.weight * share).flatten(), self.config.value_loss or "huber"
        )
        share = share.flatten()
        statistics = {"q": (taken.detach() * share).mean(), "td_error": (error * share).mean()}
        return Loss(loss / len(taken), sequence_error(error.view(length, rows), batch.valid), statistics)

    def _unroll(self, network: QNetwork, batch: SequenceBatch, steps: int) -> Tensor:
        """Values ``[steps, N, K, n]`` from the first learned step on, with the state after the burn-in."""
        begin, end = batch.burn_in, batch.burn_in + steps
        state = batch.rnn_state
        if begin:
            with torch.no_grad():
                before = {name: x[:begin] for name, x in batch.observation.items()}
                resets = [t for t in batch.reset_steps if t < begin]
                _, state = network.unroll(before, state, batch.reset[:begin], resets)
        observation = {name: x[begin:end] for name, x in batch.observation.items()}
        resets = [t - begin for t in batch.reset_steps if begin <= t < end]
        q, _ = network.unroll(observation, state, batch.reset[begin:end], resets)
        return q

    def _target(self, batch: SequenceBatch, next_q: Tensor, online_q: Tensor | None) -> Tensor:
        """Targets of the learned steps' Q(x_t, a_t), ``[L * N]``; values are ``[W + 1 - burn_in, N, K, n]``."""
        rows = batch.reward.shape[1]
        place = ((batch.then - batch.burn_in) * rows + torch.arange(rows, device=batch.then.device)).flatten()
        mask = None if batch.action_mask is None else batch.action_mask[batch.burn_in :].flatten(0, 1)[place]

        def at_place(q: Tensor) -> Tensor:
            return self.acting.branches.restrict(q.flatten(0, 1)[place], mask)

        online = None if online_q is None else at_place(online_q)
        return self.bootstrap(batch.reward.flatten(), batch.discount.flatten(), at_place(next_q), online)

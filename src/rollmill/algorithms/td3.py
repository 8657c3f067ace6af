"""Deterministic policies for continuous actions: DDPG, and TD3, which adds three improvements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, Loss, Objective, OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.exploration import ActionNoise
from rollmill.algorithms.off_policy_config import DeterministicConfig, SmoothedConfig
from rollmill.algorithms.requirements import require_bounded_box
from rollmill.losses.td3 import smoothed_action
from rollmill.losses.temporal_difference import bootstrap_target, temporal_difference_loss
from rollmill.models.actors import ActorNetwork
from rollmill.models.config import ModelConfig
from rollmill.models.critics import Critics
from rollmill.models.off_policy import frozen_copy, make_input_encoder, off_policy_model
from rollmill.specs import ActionSpec, ArraySpec


class DDPG(OffPolicyAlgorithm):
    """Deep deterministic policy gradient (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, algorithm 1).

    Its paper's exploration is ``noise_kind="ou", noise_std=0.2, ou_dt=1``.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Raises:
        ValueError: The action has categorical heads or no bounds, or the configuration asks for unsupported networks.
    """

    acting: ActorNetwork
    config: DeterministicConfig

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: DeterministicConfig,
    ) -> None:
        require_bounded_box(type(self).__name__, action)
        super().__init__(observation, action, model, config)
        model = off_policy_model(model)
        size = action.num_continuous
        encoder, width = make_input_encoder(observation, action, model)
        self.critics = Critics(encoder, width, size, self.num_critics, model)
        is_shared = model.shares_encoder(observation)
        if not is_shared:
            encoder, width = make_input_encoder(observation, action, model)
        self.acting = ActorNetwork(encoder, width, size, model, is_shared=is_shared)
        # Copied together, because they may share an encoder.
        self.targets = frozen_copy(nn.ModuleDict({"critics": self.critics, "actor": self.acting}))
        self.noise = ActionNoise(size, config)

    @property
    def num_critics(self) -> int:
        """Number of critics: one."""
        return 1

    @torch.no_grad()
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.OffPolicyAlgorithm.act`."""
        action = self.acting(observation).tanh()
        return Action(None, action if explore is None else self.noise(action, explore))

    def objectives(self) -> Sequence[Objective]:
        """Return the objectives of critics and, every ``policy_delay`` steps, the actor (with the new critics)."""
        rate = self.config.actor_learning_rate
        return [
            Objective("critic", list(self.critics.parameters()), self.critic_loss, None),
            Objective("actor", self.acting.own_parameters(), self.actor_loss, rate, self.policy_delay),
        ]

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Return the critics, the actor and their targets."""
        return [(self.critics, self.targets["critics"]), (self.acting, self.targets["actor"])]

    def target_action(self, observation: Mapping[str, Tensor], generator: torch.Generator | None) -> Tensor:
        """The target policy's action, ``[N, C]`` in [-1, 1]."""
        action: Tensor = self.targets["actor"](observation).tanh()
        return action

    def critic_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """Mean squared temporal difference of each critic (TD3, algorithm 1; DDPG, equation 4)."""
        config = self.config
        with torch.no_grad():
            action = self.target_action(batch.next_observation, generator)
            # The minimum of the critics (TD3, equation 10); DDPG has one.
            next_value = self.targets["critics"](batch.next_observation, action).min(0).values
            target = bootstrap_target(batch.reward, batch.discount, next_value)
        q = self.critics(batch.observation, batch.continuous)
        loss, error = temporal_difference_loss(q, target, batch.weight, config.value_loss or "mse")
        return Loss(loss, error, {"q": q.detach().mean(), "td_error": error.mean()})

    def actor_loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        """The deterministic policy gradient (DDPG, equation 6)."""
        features = self.acting.encode(batch.observation)
        action = self.acting.mlp(features).tanh()
        if not self.acting.is_shared:
            with torch.no_grad():
                features = self.critics.encoder(batch.observation)
        loss = -self.critics.rate(features, action, frozen=True, members=1)[0].mean()
        return Loss(loss, None, {"actor_loss": loss.detach()})


class TD3(DDPG):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1).

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Raises:
        ValueError: The action has categorical heads or no bounds, or the configuration asks for unsupported networks.
    """

    published_policy_delay = 2
    config: SmoothedConfig

    @property
    def num_critics(self) -> int:
        """Number of critics, whose minimum is used."""
        return self.config.num_critics

    def target_action(self, observation: Mapping[str, Tensor], generator: torch.Generator | None) -> Tensor:
        """The target policy's action with clipped noise (equation 14), ``[N, C]`` in [-1, 1]."""
        action = super().target_action(observation, generator)
        if self.config.target_noise > 0.0:
            normal = torch.randn(action.shape, generator=generator, device=action.device, dtype=action.dtype)
            action = smoothed_action(action, normal, self.config.target_noise, self.config.target_noise_clip)
        return action

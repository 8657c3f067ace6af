"""V-MPO (Song et al. 2020, https://arxiv.org/abs/1909.12238): an on-policy algorithm of your own.

    rollmill train gym/CartPole-v1 --import examples/vmpo.py --algo vmpo

Everything else (environments, processes, recurrent networks, lockstep, checkpoints, evaluation) is Rollmill's. One
deviation from the paper: the divergence from the policy that acted is estimated from the actions that were taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import rollmill
from rollmill.algorithms.base import Loss
from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.losses.ppo import masked_mean, normalise_advantages
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec


class VMPO(OnPolicyAlgorithm):
    """Imitates the better half of the actions, weighted by their advantages, within a trust region."""

    TEMPERATURE_BOUND, DIVERGENCE_BOUND = 0.1, 0.01  # epsilon of eta and of alpha

    def __init__(
        self, observation: Mapping[str, ArraySpec], action: ActionSpec, model: ModelConfig, config: OnPolicyConfig
    ) -> None:
        super().__init__(observation, action, model, config)
        self.log_eta = nn.Parameter(torch.zeros(()))  # the temperature of the weights
        self.log_alpha = nn.Parameter(torch.zeros(()))  # the price of the divergence

    def loss(self, batch: OnPolicyBatch, generator: torch.Generator | None) -> Loss:
        """Equations 3 to 5 of the paper, and the value's; a part of a minibatch stands for itself."""
        assert batch.advantage is not None
        assert batch.return_ is not None
        keep, share = batch.keep, batch.keep.sum() / batch.divisor
        log_prob, entropy, value = self.evaluate(batch)
        advantage = normalise_advantages(batch.advantage, keep, sums=batch.moments)
        policy, temperature = self._imitate(advantage[keep], log_prob[keep])
        log_ratio = torch.where(keep, log_prob - batch.log_prob, 0.0)
        divergence = masked_mean(log_ratio.exp() - 1.0 - log_ratio, keep, batch.divisor)
        alpha = self.log_alpha.exp()
        trust = alpha * (self.DIVERGENCE_BOUND * share - divergence.detach()) + alpha.detach() * divergence
        of_value = 0.5 * masked_mean(self.value_error(batch, value).square(), keep, batch.divisor)
        of_entropy = masked_mean(entropy, keep, batch.divisor)
        bonus = batch.coefficients["entropy_coef"] * of_entropy
        loss = share * (policy + temperature) + trust + self.config.value_coef * of_value - bonus
        statistics = {
            "policy": (share * policy).detach(),
            "value": of_value.detach(),
            "entropy": of_entropy.detach(),
            "approx_kl": divergence.detach(),
        }
        return Loss(loss, None, statistics)

    def _imitate(self, advantage: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of the policy and of the temperature, over the better half of the samples."""
        best = advantage >= advantage.median()
        eta, number = self.log_eta.exp(), math.log(max(1, int(best.sum())))
        scaled = advantage[best] / eta
        weights = scaled.detach().softmax(0)
        temperature = eta * (self.TEMPERATURE_BOUND + scaled.logsumexp(0) - number)
        return -(weights * log_prob[best]).sum(), temperature


rollmill.register_algorithm("vmpo", VMPO)

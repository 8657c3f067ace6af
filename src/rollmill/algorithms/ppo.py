"""PPO, and IMPALA, which uses V-trace and no clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.base import Loss
from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.targets import Targets, targets_of
from rollmill.losses.ppo import (
    clipped_surrogate,
    entropy_loss,
    masked_sums,
    normalise_advantages,
    policy_gradient_loss,
    ratio_bounds,
    value_loss,
)
from rollmill.losses.vtrace import vtrace


class PPO(OnPolicyAlgorithm):
    """Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    With ``clip_kind="none"`` and ``advantage="vtrace"`` it is IMPALA (Espeholt et al. 2018,
    https://arxiv.org/abs/1802.01561); clipping and V-trace together are Sample Factory's APPO (Petrenko et al. 2020,
    https://arxiv.org/abs/2006.11751).

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The network's configuration.
        config: The algorithm's configuration.
    """

    @property
    def needs_trajectories(self) -> bool:
        """True with a recurrent core, and for V-trace."""
        return super().needs_trajectories or self.config.advantage == "vtrace"

    @property
    def needs_last_value(self) -> bool:
        """True for V-trace, which needs the current network's V(x_T)."""
        return self.config.advantage == "vtrace"

    def prepare(self, arrays: Mapping[str, NDArray[Any]], *, value_mean: float, value_std: float) -> Targets:
        """See :meth:`rollmill.algorithms.on_policy.OnPolicyAlgorithm.prepare`.

        With V-trace there are no advantages yet, and returns only for a normaliser of returns.
        """
        if self.config.advantage == "gae":
            return super().prepare(arrays, value_mean=value_mean, value_std=value_std)
        targets = targets_of(
            arrays,
            self.config,
            value_mean=value_mean,
            value_std=value_std,
            trace=self.config.vtrace_lambda if self.acting.normalises_returns else None,
        )
        return targets._replace(advantage=None)

    def coefficients(self, scheduled: Mapping[str, float]) -> Mapping[str, float]:
        """Replace the clip range by its lower and upper end; a tensor in a compiled loss, like the others."""
        kind = self.config.clip_kind
        low, high = (0.0, math.inf) if kind == "none" else ratio_bounds(scheduled["clip_range"], kind)
        return {
            "low": low,
            "high": high,
            "entropy_coef": scheduled["entropy_coef"],
            "value_coef": self.config.value_coef,
        }

    def loss(self, batch: OnPolicyBatch, generator: torch.Generator | None) -> Loss:
        """Sum of the surrogate, value and entropy losses."""
        config, coefficients = self.config, batch.coefficients
        # Not batch.mask: compilers of some versions of PyTorch do not see through a property.
        keep = None if batch.reset is None else batch.keep
        log_prob, entropy, value = self.evaluate(batch)
        moments = task = None
        predicted, of_behaviour = value, batch.value
        if keep is not None:  # trajectories, whose last value has no step
            predicted = value[: len(keep)]
        scale = self.acting.value_scale(batch.observation, predicted)
        if config.advantage == "vtrace":
            target, advantage = self._vtrace(batch, log_prob, value)
            if scale is not None:
                advantage = advantage * scale
            # Advantages of one task may be far smaller than those of another, which would take all of the gradient.
            task = self.acting.tasks(batch.observation, predicted)
            moments = masked_sums(advantage, keep, task)
        else:
            assert batch.advantage is not None
            assert batch.return_ is not None
            target, advantage = batch.return_, batch.advantage
        if config.normalise_advantages:
            sums = moments if batch.moments is None else batch.moments
            advantage = normalise_advantages(advantage, keep, sums=sums, task=task)
        if config.clip_kind == "none":
            surrogate = policy_gradient_loss(log_prob, batch.log_prob, advantage, keep, batch.divisor)
        else:
            surrogate = clipped_surrogate(
                log_prob,
                batch.log_prob,
                advantage,
                keep,
                batch.divisor,
                low=coefficients["low"],
                high=coefficients["high"],
            )
        target = self.acting.normalise_value(target)
        if scale is not None:
            predicted, target, of_behaviour = predicted * scale, target * scale, of_behaviour * scale
        of_value = value_loss(
            predicted,
            target,
            keep,
            batch.divisor,
            behaviour_value=of_behaviour,
            value_clip=config.value_clip,
        )
        of_entropy = entropy_loss(entropy, keep, batch.divisor)
        loss = surrogate.loss + coefficients["value_coef"] * of_value + coefficients["entropy_coef"] * of_entropy
        statistics = {
            "policy": surrogate.loss.detach(),
            "value": of_value.detach(),
            "entropy": -of_entropy.detach(),
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
            "ratio": surrogate.mean_ratio,
        }
        return Loss(loss, None, statistics, moments)

    def _vtrace(self, batch: OnPolicyBatch, log_prob: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and advantages under the current policy, ``[T, K]``, without gradient."""
        config = self.config
        assert batch.terminated is not None
        assert batch.cut is not None
        assert batch.valid is not None
        result = vtrace(
            batch.log_prob,
            log_prob.detach(),
            batch.reward,
            self.acting.denormalise_value(value.detach()),
            (~batch.terminated).to(batch.reward.dtype).mul_(config.discount),
            batch.cut,
            batch.valid,
            vtrace_lambda=config.vtrace_lambda,
            rho_bar=config.vtrace_rho,
            c_bar=config.vtrace_c,
            rho_pg_bar=config.vtrace_rho if config.clip_kind == "none" else None,
        )
        return result.vs, result.pg_advantage

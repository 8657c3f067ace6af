"""What is minimised: one part of a minibatch, through the network and the losses. A function of tensors alone.

Each loss is a sum divided by the number of samples that count in the *whole* minibatch, so the shares of its parts add
up, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import FastPath
from rollmill.losses.ppo import (
    Surrogate,
    clipped_surrogate,
    entropy_loss,
    masked_sums,
    normalise_advantages,
    policy_gradient_loss,
    value_loss,
)
from rollmill.losses.vtrace import vtrace
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.precision import wide

__all__ = ["APPROX_KL", "ENTROPY", "STATISTICS", "Objective", "Part", "Scales", "Share", "learns_in_time"]

STATISTICS = ("policy", "value", "entropy", "approx_kl", "clip_fraction", "ratio")
APPROX_KL, ENTROPY = STATISTICS.index("approx_kl"), STATISTICS.index("entropy")


class Part(NamedTuple):
    """What is differentiated at once: M samples, or K whole trajectories as ``[T, K]``.

    Attributes:
        observation: By name, ``[M, ...]`` or ``[T(+1), K, ...]``.
        arrays: The batch's small arrays and targets, cut alike, on the learner's device.
        keep: bool ``[M]`` or ``[T, K]``: which samples count.
        reset_steps: For trajectories: the steps at which any of them begins an episode.
    """

    observation: Mapping[str, Tensor]
    arrays: Mapping[str, Tensor]
    keep: Tensor
    reset_steps: tuple[int, ...] = ()


class Scales(NamedTuple):
    """Numbers of a whole minibatch; scalar tensors where the function is compiled, which would freeze Python's.

    Attributes:
        divisor: How many of its samples count.
        low: Lower end of the range of ratios.
        high: Upper end.
        entropy_coef: Weight of the entropy bonus.
    """

    divisor: Tensor | float
    low: Tensor | float
    high: Tensor | float
    entropy_coef: Tensor | float


class Share(NamedTuple):
    """A part's share of the minibatch.

    Attributes:
        loss: To be differentiated, a scalar.
        statistics: By :data:`STATISTICS`, float32 ``[6]``, without gradient.
        advantage_sums: V-trace's, see :func:`rollmill.losses.ppo.masked_sums`; None where advantages were known.
    """

    loss: Tensor
    statistics: Tensor
    advantage_sums: Tensor | None


def learns_in_time(model: ActorCritic, config: LearnerConfig) -> bool:
    """Whether samples are learned from in whole trajectories: with a recurrent core, and by V-trace."""
    return bool(model.state_size) or config.advantage == "vtrace"


class Objective:
    """The loss of a network under a configuration.

    Args:
        model: The network, on its device.
        config: The learner's configuration.
        fast_path: Precision, and the encoder's micro-batch where time matters.
        in_time: Whether parts are whole trajectories, as :func:`learns_in_time` says.
    """

    def __init__(self, model: ActorCritic, config: LearnerConfig, fast_path: FastPath, *, in_time: bool) -> None:
        self._model = model
        self._config = config
        self._bf16 = fast_path.precision == "bf16"
        self._encoder_batch = fast_path.micro_batch
        self._trajectories = in_time

    def __call__(self, part: Part, scales: Scales, sums: Tensor | None) -> Share:
        """One part's share of the loss.

        Args:
            part: Observations, arrays and mask.
            scales: Of the whole minibatch.
            sums: Moments that normalise advantages, see :func:`rollmill.losses.ppo.masked_sums`; None takes those of
                this part.
        """
        with torch.autocast(part.keep.device.type, torch.bfloat16, enabled=self._bf16):
            params, value = self._forward(part)
        return self._loss(part, wide(params), wide(value), scales, sums)

    def _forward(self, part: Part) -> tuple[Tensor, Tensor]:
        """Action parameters and values: ``[M, P]``, ``[M]``, or ``[T(+1), K, P]``, ``[T(+1), K]``."""
        if not self._trajectories:
            output = self._model(part.observation, None, None)
            return output.params, output.value
        rows = next(iter(part.observation.values())).shape[0]
        output = self._model.unroll(
            part.observation,
            part.arrays.get("rnn_state"),
            part.arrays["reset"][:rows],
            part.reset_steps,
            encoder_batch=self._encoder_batch,
        )
        return output.params, output.value

    def _loss(self, part: Part, params: Tensor, value: Tensor, scales: Scales, sums: Tensor | None) -> Share:
        config, arrays, keep = self._config, part.arrays, part.keep
        steps = keep.shape[0]
        mask = arrays.get("action_mask")
        evaluation = self._model.distribution.evaluate(
            params[:steps],
            arrays.get("action_discrete"),
            arrays.get("action_continuous"),
            None if mask is None else mask[:steps],
        )
        log_prob = evaluation.log_prob
        own = None
        if config.advantage == "vtrace":
            target, advantage = self._vtrace(part, log_prob, value)
            own = masked_sums(advantage, keep)
        else:
            target, advantage = arrays["return"], arrays["advantage"]
        if config.normalise_advantages:
            advantage = normalise_advantages(advantage, keep, sums=own if sums is None else sums)
        target = self._model.normalise_value(target)
        surrogate = self._surrogate(log_prob, arrays["log_prob"], advantage, keep, scales)
        of_value = value_loss(
            value[:steps],
            target,
            keep,
            scales.divisor,
            behaviour_value=arrays["value"][:steps],
            value_clip=config.value_clip,
        )
        of_entropy = entropy_loss(evaluation.entropy, keep, scales.divisor)
        loss = surrogate.loss + config.value_coef * of_value + scales.entropy_coef * of_entropy
        with torch.no_grad():
            statistics = torch.stack(
                [
                    surrogate.loss,
                    of_value,
                    -of_entropy,
                    surrogate.approx_kl,
                    surrogate.clip_fraction,
                    surrogate.mean_ratio,
                ]
            )
        return Share(loss, statistics, own)

    def _surrogate(
        self, log_prob: Tensor, behaviour: Tensor, advantage: Tensor, keep: Tensor, scales: Scales
    ) -> Surrogate:
        if self._config.clip_kind == "none":
            return policy_gradient_loss(log_prob, behaviour, advantage, keep, scales.divisor)
        return clipped_surrogate(log_prob, behaviour, advantage, keep, scales.divisor, low=scales.low, high=scales.high)

    def _vtrace(self, part: Part, log_prob: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and advantages under the present policy, ``[T, K]``, without gradient; V(x_T) is the present one."""
        config, arrays = self._config, part.arrays
        result = vtrace(
            arrays["log_prob"],
            log_prob.detach(),
            arrays["reward"],
            self._model.denormalise_value(value.detach()),
            arrays["terminated"],
            arrays["cut"],
            arrays["valid"],
            discount=config.discount,
            vtrace_lambda=config.vtrace_lambda,
            rho_bar=config.vtrace_rho,
            c_bar=config.vtrace_c,
            rho_pg_bar=config.vtrace_rho if config.clip_kind == "none" else None,
        )
        return result.vs, result.pg_advantage

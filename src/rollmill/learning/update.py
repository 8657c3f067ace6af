"""The minibatch loop: epochs over a batch, minibatches of it, micro-batches of those, gradients summed up.

A micro-batch is what runs through the network at once; it is small so that its activations stay in the cache (a factor
of two on a CPU), and because each loss is a sum divided by the number of valid samples of the *whole* minibatch, its
size changes the speed and nothing else.

Two kinds of part are cut from a batch. Where every sample stands for itself (feed-forward network, advantages known
beforehand), minibatches are random samples, and invalid or too old ones are not computed at all. Where time matters
(recurrent core, V-trace), they are whole trajectories with a mask; then only the encoder works in micro-batches, and
core and loss see the whole minibatch, unless its activations would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.learning.batches import Batch
from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.optimisers import NonFiniteGuard, clip_grad_norm_
from rollmill.learning.targets import Targets
from rollmill.losses.ppo import (
    Surrogate,
    clipped_surrogate,
    entropy_loss,
    masked_sums,
    normalise_advantages,
    policy_gradient_loss,
    ratio_bounds,
    value_loss,
)
from rollmill.losses.vtrace import vtrace
from rollmill.models.actor_critic import ActorCritic
from rollmill.native import gather


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


def learns_in_time(model: ActorCritic, config: LearnerConfig) -> bool:
    """Whether samples are learned from in whole trajectories: with a recurrent core, and by V-trace."""
    return bool(model.state_size) or config.advantage == "vtrace"


LOSS_NAMES = ("policy", "value", "entropy", "approx_kl", "clip_fraction", "ratio", "gradient_norm")


class Updater:
    """Learns from batches: owns the minibatch loop, not the weights' publication and not the schedules.

    Args:
        model: The network, on its device.
        optimiser: Of the model's parameters.
        observation: The slots' observation arrays ``[num_slots, T + 1, B, ...]``.
        config: The learner's configuration.
        fast_path: Precision, memory format and micro-batch size.
        random: Permutes samples and trajectories.
    """

    def __init__(
        self,
        model: ActorCritic,
        optimiser: torch.optim.Optimizer,
        observation: Mapping[str, NDArray[np.generic]],
        config: LearnerConfig,
        fast_path: FastPath,
        random: np.random.Generator,
    ) -> None:
        """Prepares views; allocates nothing of a batch's size."""
        self._model = model
        self._optimiser = optimiser
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._observation = {name: a.reshape(-1, *a.shape[3:]) for name, a in observation.items()}
        self._config = config
        self._fast_path = fast_path
        self._random = random
        self._trajectories = learns_in_time(model, config)
        self._guard = NonFiniteGuard(self._device)
        self._previous_sums: Tensor | None = None
        self._losses = torch.zeros(len(LOSS_NAMES), device=self._device)
        self._num_losses = 0
        self._step_kl = torch.zeros((), device=self._device)

    def learn(
        self,
        batch: Batch,
        targets: Targets,
        keep: NDArray[np.bool_],
        *,
        clip_range: float,
        entropy_coef: float,
        after_step: Callable[[], bool],
    ) -> bool:
        """Runs all epochs over a batch.

        Args:
            batch: The trajectories.
            targets: See :func:`targets_of`.
            keep: bool ``[T, N]``: samples that count: valid and not too old.
            clip_range: Epsilon of the PPO ratio, by its schedule.
            entropy_coef: Weight of the entropy bonus, by its schedule.
            after_step: Called after every SGD step, to publish; False leaves the rest of the batch. A minibatch without
                a sample that counts makes no step.

        Returns:
            Whether the whole batch was learned from.

        Raises:
            NonFiniteGradientError: A loss of this batch was not finite; the message says which input or loss it was.
        """
        coefficients = (clip_range, entropy_coef)
        for _ in range(self._config.epochs):
            for chosen in self._minibatches(keep):
                if not self._step(batch, targets, keep, chosen, *coefficients):
                    continue
                if not after_step():
                    self._guard.check("learning from a batch")
                    return False
        self._guard.check("learning from a batch")
        return True

    def last_kl(self) -> float:
        """Approximate KL of the last SGD step's policy from the one that acted, for an adaptive schedule."""
        return float(self._step_kl)

    def take_losses(self) -> dict[str, float]:
        """Means over the SGD steps since the last call; the one place that waits for the device."""
        if not self._num_losses:
            return {}
        means = (self._losses / self._num_losses).tolist()
        self._losses.zero_()
        self._num_losses = 0
        return dict(zip(LOSS_NAMES, means, strict=True))

    def _minibatches(self, keep: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
        """Random parts of equal size: indices into ``keep.ravel()``, or columns where trajectories stay whole."""
        everything = np.arange(keep.shape[1]) if self._trajectories else np.flatnonzero(keep)
        parts = np.array_split(self._random.permutation(everything), self._config.minibatches)
        return [part for part in parts if len(part)]

    def _step(
        self,
        batch: Batch,
        targets: Targets,
        keep: NDArray[np.bool_],
        chosen: NDArray[np.int64],
        clip_range: float,
        entropy_coef: float,
    ) -> bool:
        """One SGD step: the minibatch's micro-batches, whose gradients add up; False if no sample of it counts."""
        count = int(keep[:, chosen].sum()) if self._trajectories else len(chosen)
        if not count:
            return False
        limit = self._fast_path.micro_batch
        if self._trajectories:
            limit = (self._fast_path.graph_samples or limit) // batch.rollout_length
        pieces = np.array_split(chosen, -(-len(chosen) // max(1, limit)))
        whole = len(pieces) == 1
        sums = self._advantage_sums(targets, keep, chosen)
        seen = torch.zeros(3, dtype=torch.float64, device=self._device)
        self._step_kl.zero_()
        self._optimiser.zero_grad(set_to_none=True)
        for piece in pieces:
            part = self._cut(batch, targets, keep, piece)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._fast_path.precision == "bf16"):
                params, value = self._forward(part)
            loss = self._loss(part, params, value, count, sums, seen, clip_range, entropy_coef, whole=whole)
            loss.backward()  # type: ignore[no-untyped-call]
        if sums is None:
            self._previous_sums = seen
        norm = clip_grad_norm_(self._parameters, self._config.max_grad_norm, self._guard)
        self._optimiser.step()
        self._losses[-1] += norm
        self._num_losses += 1
        return True

    def _advantage_sums(self, targets: Targets, keep: NDArray[np.bool_], chosen: NDArray[np.int64]) -> Tensor | None:
        """``[count, sum, sum of squares]`` of the whole minibatch's advantages; None where they are not known yet."""
        if targets.advantage is None:
            return None
        if self._trajectories:
            values = targets.advantage[:, chosen][keep[:, chosen]]
        else:
            values = targets.advantage.ravel()[chosen]
        wide = values.astype(np.float64)
        return torch.tensor([len(wide), wide.sum(), np.square(wide).sum()], dtype=torch.float64, device=self._device)

    def _cut(self, batch: Batch, targets: Targets, keep: NDArray[np.bool_], piece: NDArray[np.int64]) -> Part:
        """Gathers one micro-batch: observations out of the slots, the rest out of the batch."""
        arrays = dict(batch.arrays)
        if targets.advantage is not None and targets.return_ is not None:
            arrays |= {"advantage": targets.advantage, "return": targets.return_}
        arrays |= {"reward": targets.reward, "cut": targets.cut}
        steps = batch.rollout_length
        if not self._trajectories:
            index = batch.observation_index[:steps].reshape(-1)[piece]
            flat = {
                name: a[:steps].reshape(-1, *a.shape[2:])[piece] for name, a in arrays.items() if name in _PER_SAMPLE
            }
            everything = np.ones(len(piece), np.bool_)
            return Part(self.observations(index), self._to_device(flat), self._tensor(everything))
        rows = steps + (self._config.advantage == "vtrace")
        index = batch.observation_index[:rows, piece]
        cut = {name: a[:, piece] for name, a in arrays.items() if name != "rnn_state"}
        resets = tuple(np.flatnonzero(cut["reset"][:rows].any(axis=1)).tolist())
        if "rnn_state" in arrays:
            cut["rnn_state"] = arrays["rnn_state"][piece]
        observation = {
            name: tensor.view(*index.shape, *tensor.shape[1:])
            for name, tensor in self.observations(index.reshape(-1)).items()
        }
        return Part(observation, self._to_device(cut), self._tensor(keep[:, piece]), resets)

    def observations(self, index: NDArray[np.int64]) -> dict[str, Tensor]:
        """x_t for these rows of the slots, ``[M, ...]``, on the learner's device."""
        result = {}
        for name, source in self._observation.items():
            # From torch's caching allocator: page-locked for a GPU, so that the copy runs beside the computation.
            tensor = torch.empty(
                (len(index), *source.shape[1:]),
                dtype=torch.from_numpy(source[:0]).dtype,
                pin_memory=self._device.type == "cuda",
            )
            gather(tensor.numpy(), source, index)
            result[name] = tensor.to(self._device, non_blocking=True)
        return result

    def _to_device(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

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
            encoder_batch=self._fast_path.micro_batch,
        )
        return output.params, output.value

    def _loss(
        self,
        part: Part,
        params: Tensor,
        value: Tensor,
        count: int,
        sums: Tensor | None,
        seen: Tensor,
        clip_range: float,
        entropy_coef: float,
        *,
        whole: bool,
    ) -> Tensor:
        """This micro-batch's share of the minibatch's loss, a scalar."""
        config, arrays, keep = self._config, part.arrays, part.keep
        params, value = params.float(), value.float()
        steps = keep.shape[0]
        mask = arrays.get("action_mask")
        evaluation = self._model.distribution.evaluate(
            params[:steps],
            arrays.get("action_discrete"),
            arrays.get("action_continuous"),
            None if mask is None else mask[:steps],
        )
        log_prob, behaviour = evaluation.log_prob, arrays["log_prob"]
        if config.advantage == "vtrace":
            target, advantage = self._vtrace(part, log_prob, value)
            own = masked_sums(advantage, keep)
            seen += own
            if sums is None:
                # A piece cannot know the whole minibatch's moments: the previous one's stand in where memory forces
                # pieces.
                sums = own if whole or self._previous_sums is None else self._previous_sums
        else:
            target, advantage = arrays["return"], arrays["advantage"]
        if config.normalise_advantages and sums is not None:
            advantage = normalise_advantages(advantage, keep, sums=sums)
        target = self._model.normalise_value(target)
        surrogate = self._surrogate(log_prob, behaviour, advantage, keep, count, clip_range)
        of_value = value_loss(
            value[:steps], target, keep, count, behaviour_value=arrays["value"][:steps], value_clip=config.value_clip
        )
        of_entropy = entropy_loss(evaluation.entropy, keep, count)
        with torch.no_grad():
            self._step_kl += surrogate.approx_kl
            self._losses[:-1] += torch.stack(
                [
                    surrogate.loss,
                    of_value,
                    -of_entropy,
                    surrogate.approx_kl,
                    surrogate.clip_fraction,
                    surrogate.mean_ratio,
                ]
            )
        return surrogate.loss + config.value_coef * of_value + entropy_coef * of_entropy

    def _surrogate(
        self, log_prob: Tensor, behaviour: Tensor, advantage: Tensor, keep: Tensor, count: int, clip_range: float
    ) -> Surrogate:
        kind = self._config.clip_kind
        if kind == "none":
            return policy_gradient_loss(log_prob, behaviour, advantage, keep, count)
        low, high = ratio_bounds(clip_range, kind)
        return clipped_surrogate(log_prob, behaviour, advantage, keep, count, low=low, high=high)

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


_PER_SAMPLE = frozenset(
    {"action_discrete", "action_continuous", "action_mask", "log_prob", "value", "reward", "advantage", "return"}
)

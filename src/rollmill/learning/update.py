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

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.learning.batches import Batch
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.objective import APPROX_KL, ENTROPY, STATISTICS, Objective, Part, Scales, Share, learns_in_time
from rollmill.learning.optimisers import NonFiniteGuard, clip_grad_norm_
from rollmill.learning.targets import Targets
from rollmill.losses.ppo import ratio_bounds
from rollmill.models.actor_critic import ActorCritic
from rollmill.native import gather

LOSS_NAMES = (*STATISTICS, "gradient_norm")


class Whole(NamedTuple):
    """What every rank knows of the batch of all ranks, so that all choose the same minibatches.

    Attributes:
        keep: bool ``[T, N]``: samples that count.
        advantage: float ``[T, N]``, where they are known beforehand and to be normalised.
        columns: Which of the N trajectories are this rank's.
    """

    keep: NDArray[np.bool_]
    advantage: NDArray[np.floating[Any]] | None
    columns: range

    @classmethod
    def of(cls, targets: Targets, keep: NDArray[np.bool_], collective: Collective, config: LearnerConfig) -> Whole:
        """From what this rank has: ``keep``, bool ``[T, N / W]``, and the targets."""
        each, rank = keep.shape[1], collective.rank
        advantage = targets.advantage if config.normalise_advantages else None
        if advantage is not None:
            advantage = collective.columns(advantage)
        return cls(collective.columns(keep), advantage, range(rank * each, (rank + 1) * each))

    def own_trajectories(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the chosen columns that are this rank's, as its own batch counts them."""
        first, end = self.columns.start, self.columns.stop
        return chosen[(chosen >= first) & (chosen < end)] - first

    def own_samples(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the chosen indices into ``keep.ravel()`` that are this rank's, as its own batch counts them."""
        count = self.keep.shape[1]
        if len(self.columns) == count:
            return chosen
        steps, column = np.divmod(chosen, count)
        is_own = (column >= self.columns.start) & (column < self.columns.stop)
        return steps[is_own] * len(self.columns) + column[is_own] - self.columns.start


class Updater:
    """Learns from batches: owns the minibatch loop, not the weights' publication and not the schedules.

    Args:
        model: The network, on its device.
        optimiser: Of the model's parameters.
        observation: The slots' observation arrays ``[num_slots, T + 1, B, ...]``.
        config: The learner's configuration.
        fast_path: Precision, memory format and micro-batch size.
        random: Permutes samples and trajectories; the same on every rank.
        collective: The ranks that learn together.

    Attributes:
        previous_sums: Moments of the last minibatch's advantages, float64 ``[3]``, where V-trace gives them; a run that
            is to go on exactly needs them.
    """

    def __init__(
        self,
        model: ActorCritic,
        optimiser: torch.optim.Optimizer,
        observation: Mapping[str, NDArray[np.generic]],
        config: LearnerConfig,
        fast_path: FastPath,
        random: np.random.Generator,
        collective: Collective | None = None,
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
        self._collective = collective or Alone()
        self._trajectories = learns_in_time(model, config)
        self._objective: Callable[..., Share] = Objective(model, config, fast_path, in_time=self._trajectories)
        if fast_path.compile:
            # Minibatches differ in size by what is left out of them.
            self._objective = torch.compile(self._objective, dynamic=True)
        self._guard = NonFiniteGuard(self._device)
        self.previous_sums: Tensor | None = None
        self._losses = torch.zeros(len(LOSS_NAMES), device=self._device)
        self._num_losses = 0
        self._is_told_to_stop = False
        self._step_statistics = torch.zeros(len(STATISTICS), device=self._device)

    def learn(
        self,
        batch: Batch,
        targets: Targets,
        keep: NDArray[np.bool_],
        whole: Whole | None = None,
        *,
        clip_range: float,
        entropy_coef: float,
        after_step: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> bool:
        """Runs all epochs over a batch.

        Args:
            batch: The trajectories.
            targets: See :func:`targets_of`.
            keep: bool ``[T, N]``: samples that count: valid and not too old.
            whole: What is known of all ranks' batches; made of ``keep`` by default.
            clip_range: Epsilon of the PPO ratio, by its schedule.
            entropy_coef: Weight of the entropy bonus, by its schedule.
            after_step: Called after every SGD step; it may publish. A minibatch without a sample that counts makes no
                step.
            is_stopping: Asked before every micro-batch, which may take seconds; True leaves the rest of the batch.

        Returns:
            Whether the whole batch was learned from.

        Raises:
            NonFiniteGradientError: A gradient of this batch was not finite; the message says which observations and
                losses were not.
        """
        kind = self._config.clip_kind
        low, high = (0.0, math.inf) if kind == "none" else ratio_bounds(clip_range, kind)
        scales = Scales(math.nan, low, high, entropy_coef)
        whole = whole or Whole.of(targets, keep, self._collective, self._config)
        for _ in range(self._config.num_epochs):
            for chosen in self._minibatches(whole.keep):
                if self._step(batch, targets, keep, whole, chosen, scales, is_stopping):
                    after_step()
                if self._is_told_to_stop or (self._collective.world_size == 1 and is_stopping()):
                    self._guard.check(lambda: self._what_was_not_finite(batch))
                    return False
        self._guard.check(lambda: self._what_was_not_finite(batch))
        return True

    def last_kl(self) -> float:
        """Approximate KL of the last SGD step's policy from the one that acted, for an adaptive schedule."""
        return float(self._step_statistics[APPROX_KL])

    def last_entropy(self) -> float:
        """Mean entropy of the last SGD step's policy, in nats."""
        return float(self._step_statistics[ENTROPY])

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
        whole: Whole,
        chosen: NDArray[np.int64],
        scales: Scales,
        is_stopping: Callable[[], bool],
    ) -> bool:
        """One SGD step: this rank's part of the minibatch in micro-batches, whose gradients add up.

        Returns:
            False if nothing was changed, because no sample of it counts or the run is stopping.
        """
        count = int(whole.keep[:, chosen].sum()) if self._trajectories else len(chosen)
        if not count:
            return False
        own = whole.own_trajectories(chosen) if self._trajectories else whole.own_samples(chosen)
        limit = self._fast_path.micro_batch
        if self._trajectories:
            limit = (self._fast_path.graph_samples or limit) // batch.rollout_length
        pieces = np.array_split(own, -(-len(own) // max(1, limit))) if len(own) else []
        sums = self._advantage_sums(whole, chosen)
        if sums is None and len(pieces) > 1:
            # A piece cannot know the whole minibatch's moments: the previous one's stand in where memory forces pieces.
            sums = self.previous_sums
        seen = None
        scales = self._scaled(scales, count)
        alone = self._collective.world_size == 1
        statistics = torch.zeros(len(STATISTICS), device=self._device)
        self._optimiser.zero_grad(set_to_none=True)
        for piece in pieces:
            if alone and is_stopping():
                # A step that is not made has no place among the means over steps.
                self._losses.zero_()
                self._num_losses = 0
                return False
            share = self._objective(self._cut(batch, targets, keep, piece), scales, sums)
            share.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            statistics += share.statistics
            if share.advantage_sums is not None:
                seen = share.advantage_sums if seen is None else seen + share.advantage_sums
        self.previous_sums = seen
        if not alone:
            # All stop after the same step, whoever of them is told to.
            stops = statistics.new_tensor([float(is_stopping())])
            summed = self._collective.sum_gradients(self._parameters, torch.cat([statistics, stops]))
            statistics, self._is_told_to_stop = summed[:-1], bool(summed[-1] > 0)
            if self._is_told_to_stop:
                return False
        self._losses[:-1] += statistics
        self._step_statistics = statistics
        norm = clip_grad_norm_(self._parameters, self._config.max_grad_norm, self._guard)
        self._optimiser.step()
        self._losses[-1] += norm
        self._num_losses += 1
        return True

    def _what_was_not_finite(self, batch: Batch) -> str:
        """For the message of a run that ends with it, so it may take its time."""
        index = batch.observation_index[: batch.rollout_length].reshape(-1)
        names = [
            f"observation {name!r}"
            for name, source in self._observation.items()
            if source.dtype.kind == "f" and not np.isfinite(source[index]).all()
        ]
        names += [f"loss/{name}" for name, loss in zip(LOSS_NAMES, self._losses, strict=True) if not loss.isfinite()]
        return f"learning from a batch in which these are not finite: {', '.join(names)}"

    def _scaled(self, scales: Scales, count: int) -> Scales:
        """For a minibatch of which ``count`` samples count."""
        scales = scales._replace(divisor=float(count))
        if not self._fast_path.compile:
            return scales
        return Scales(*self._tensor(np.array(scales, np.float32)).unbind())

    def _advantage_sums(self, whole: Whole, chosen: NDArray[np.int64]) -> Tensor | None:
        """``[count, sum, sum of squares]`` of the whole minibatch's advantages; None where they are not known yet."""
        if whole.advantage is None:
            return None
        if self._trajectories:
            values = whole.advantage[:, chosen][whole.keep[:, chosen]]
        else:
            values = whole.advantage.ravel()[chosen]
        wide = values.astype(np.float64)
        return self._tensor(np.array([len(wide), wide.sum(), np.square(wide).sum()]))

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

    def observations(self, index: NDArray[np.int64], entries: Collection[str] | None = None) -> dict[str, Tensor]:
        """x_t for these rows of the slots, ``[M, ...]``, on the learner's device; of all entries, or of some."""
        result = {}
        for name, source in self._observation.items():
            if entries is not None and name not in entries:
                continue
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
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()  # else the copy would wait for what the GPU has to do before it
        return tensor.to(self._device, non_blocking=True)


_PER_SAMPLE = frozenset(
    {"action_discrete", "action_continuous", "action_mask", "log_prob", "value", "reward", "advantage", "return"}
)

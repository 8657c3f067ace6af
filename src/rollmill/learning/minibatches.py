"""Division of a batch of trajectories into minibatches, and of those into parts for one pass of the network.

A part is small so that its activations stay in the cache (a factor of two on a CPU). Each loss is a sum divided by the
number of included samples in the *whole* minibatch, so the size of a part affects speed only.

If samples are independent (feed-forward network, advantages known in advance), minibatches are random samples, and
excluded samples are not computed. Otherwise (recurrent core, V-trace), they are whole trajectories with a mask; only
the encoder then works in small parts, while core and loss process the whole minibatch unless its activations exceed the
memory limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.targets import Targets
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.fast_path import FastPath
from rollmill.learning.trajectories import Trajectories
from rollmill.native import gather
from rollmill.storage.slots import RNN_STATE


class Whole(NamedTuple):
    """Data of all ranks' batches that every rank needs to choose the same minibatches.

    Attributes:
        keep: bool ``[T, N]``: samples to learn from.
        advantage: float ``[T, N]``, if known in advance and to be normalised.
        columns: Slice of the N trajectories that belong to this rank.
    """

    keep: NDArray[np.bool_]
    advantage: NDArray[np.floating[Any]] | None
    columns: range

    @classmethod
    def of(cls, targets: Targets, keep: NDArray[np.bool_], collective: Collective, config: OnPolicyConfig) -> Whole:
        """Gather from this rank's ``keep``, bool ``[T, N / W]``, and its targets."""
        each, rank = keep.shape[1], collective.rank
        advantage = targets.advantage if config.normalise_advantages else None
        if advantage is not None:
            advantage = collective.columns(advantage)
        return cls(collective.columns(keep), advantage, range(rank * each, (rank + 1) * each))

    def own_trajectories(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this rank's columns among the chosen ones, as indices into its own batch."""
        first, end = self.columns.start, self.columns.stop
        return chosen[(chosen >= first) & (chosen < end)] - first

    def own_samples(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this rank's samples among the indices into ``keep.ravel()``, as indices into its own batch."""
        count = self.keep.shape[1]
        if len(self.columns) == count:
            return chosen
        steps, column = np.divmod(chosen, count)
        is_own = (column >= self.columns.start) & (column < self.columns.stop)
        return steps[is_own] * len(self.columns) + column[is_own] - self.columns.start


class Minibatch:
    """This rank's parts of a minibatch; every iteration gathers each part lazily.

    Args:
        cut: Gathers a part.
        pieces: int64 indices of each part.
    """

    def __init__(self, cut: Callable[[NDArray[np.int64]], OnPolicyBatch], pieces: Sequence[NDArray[np.int64]]) -> None:
        self._cut = cut
        self._pieces = pieces

    def __iter__(self) -> Iterator[OnPolicyBatch]:
        return map(self._cut, self._pieces)


class Minibatches:
    """Divides batches without allocating memory of a batch's size.

    Args:
        algorithm: Decides on epochs, minibatches, and whether trajectories stay whole; on its device.
        observation: The slots' observation arrays ``[num_slots, T + 1, B, ...]``.
        path: Sizes of parts.
        random: Permutes samples and trajectories; the same on every rank.
        collective: The ranks.

    Attributes:
        previous_moments: Moments of the last minibatch's advantages, float64 ``[3]`` or ``[3, tasks]``, if the loss
            computes them. Parts use the previous minibatch's moments, because they do not know the current one's. Saved
            in checkpoints of runs that resume exactly.
    """

    def __init__(
        self,
        algorithm: OnPolicyAlgorithm,
        observation: Mapping[str, NDArray[np.generic]],
        path: FastPath,
        random: np.random.Generator,
        collective: Collective | None = None,
    ) -> None:
        self._in_time = algorithm.needs_trajectories
        self._needs_last_value = algorithm.needs_last_value
        self._device = next(algorithm.parameters()).device
        self._observation = {name: a.reshape(-1, *a.shape[3:]) for name, a in observation.items()}
        self._config = algorithm.config
        self._path = path
        self._random = random
        self._collective = collective or Alone()
        self.previous_moments: Tensor | None = None
        self._uses_previous = False

    def keep_moments(self, moments: Tensor | None) -> None:
        """Keep the moments of a minibatch for the next one, unless parts would divide by the deviation of one sample.

        Args:
            moments: As :attr:`previous_moments`, of a minibatch that was learned from.
        """
        before = self.previous_moments
        if self._uses_previous and moments is not None and before is not None and before.shape == moments.shape:
            moments = torch.where(moments[0].sum() < 2.0, before, moments)
        self.previous_moments = moments

    def of(
        self,
        batch: Trajectories,
        targets: Targets,
        keep: NDArray[np.bool_],
        coefficients: Mapping[str, float],
        whole: Whole | None = None,
    ) -> Iterator[Minibatch]:
        """Yield the minibatches of all epochs that have a sample to learn from.

        Args:
            batch: The trajectories.
            targets: Result of :meth:`rollmill.algorithms.on_policy.OnPolicyAlgorithm.prepare`.
            keep: bool ``[T, N]``: samples to learn from: valid and within the lag limit.
            coefficients: Scheduled numbers for the loss.
            whole: Data of all ranks' batches; by default computed from ``keep``.
        """
        whole = whole or Whole.of(targets, keep, self._collective, self._config)
        everything = np.arange(whole.keep.shape[1]) if self._in_time else np.flatnonzero(whole.keep)
        for _ in range(self._config.num_epochs):
            for chosen in np.array_split(self._random.permutation(everything), self._config.minibatches):
                count = int(whole.keep[:, chosen].sum()) if self._in_time else len(chosen)
                if count:
                    yield self._minibatch(batch, targets, keep, coefficients, whole, chosen, count)

    def observations(self, index: NDArray[np.int64], entries: Collection[str] | None = None) -> dict[str, Tensor]:
        """Gather x_t of these rows of the slots, ``[M, ...]``, on the learner's device; all entries by default."""
        result = {}
        for name, source in self._observation.items():
            if entries is not None and name not in entries:
                continue
            # From torch's caching allocator; page-locked for a GPU, so that the copy overlaps with computation.
            tensor = torch.empty(
                (len(index), *source.shape[1:]),
                dtype=torch.from_numpy(source[:0]).dtype,
                pin_memory=self._device.type == "cuda",
            )
            gather(tensor.numpy(), source, index)
            result[name] = tensor.to(self._device, non_blocking=True)
        return result

    def non_finite(self, batch: Trajectories) -> list[str]:
        """Describe non-finite observation entries of a batch for a message; slow."""
        index = batch.observation_index[: batch.rollout_length].reshape(-1)
        return [
            f"observation {name!r}"
            for name, source in self._observation.items()
            if source.dtype.kind == "f" and not np.isfinite(source[index]).all()
        ]

    def _minibatch(
        self,
        batch: Trajectories,
        targets: Targets,
        keep: NDArray[np.bool_],
        coefficients: Mapping[str, float],
        whole: Whole,
        chosen: NDArray[np.int64],
        count: int,
    ) -> Minibatch:
        own = whole.own_trajectories(chosen) if self._in_time else whole.own_samples(chosen)
        limit = self._path.micro_batch
        if self._in_time:
            limit = (self._path.graph_samples or limit) // batch.rollout_length
        pieces = np.array_split(own, -(-len(own) // max(1, limit))) if len(own) else []
        moments = self._advantage_moments(whole, chosen)
        if moments is None and len(pieces) > 1:
            moments, self._uses_previous = self.previous_moments, True
        shared = _Shared(float(count), moments, coefficients)
        if self._path.compile:
            # A compiled function would specialise on Python numbers.
            numbers = self._tensor(np.array([count, *coefficients.values()], np.float32)).unbind()
            shared = _Shared(numbers[0], moments, dict(zip(coefficients, numbers[1:], strict=True)))
        return Minibatch(lambda piece: self._cut(batch, targets, keep, shared, piece), pieces)

    def _advantage_moments(self, whole: Whole, chosen: NDArray[np.int64]) -> Tensor | None:
        """Return ``[count, sum, sum of squares]`` of the whole minibatch's advantages; None if not yet known."""
        if whole.advantage is None:
            return None
        kept = whole.advantage[:, chosen][whole.keep[:, chosen]] if self._in_time else whole.advantage.ravel()[chosen]
        wide = kept.astype(np.float64)
        return self._tensor(np.array([len(wide), wide.sum(), np.square(wide).sum()]))

    def _cut(
        self,
        batch: Trajectories,
        targets: Targets,
        keep: NDArray[np.bool_],
        shared: _Shared,
        piece: NDArray[np.int64],
    ) -> OnPolicyBatch:
        """Gather a part: observations from the slots, other arrays from the batch."""
        arrays, steps = batch.arrays, batch.rollout_length
        rows = steps + (self._in_time and self._needs_last_value)
        index = batch.observation_index[:rows]
        index = index[:, piece] if self._in_time else index.reshape(-1)[piece]
        observation = self.observations(index.reshape(-1))
        reset = arrays["reset"][:, piece] if self._in_time else None

        def always(array: NDArray[Any]) -> Tensor:
            if self._in_time:
                return self._tensor(array[:, piece])
            return self._tensor(array[:steps].reshape(-1, *array.shape[2:])[piece])

        def at(array: NDArray[Any] | None) -> Tensor | None:
            return None if array is None else always(array)

        def in_time(array: NDArray[Any]) -> Tensor | None:
            return always(array) if self._in_time else None

        return OnPolicyBatch(
            observation={name: x.view(*index.shape, *x.shape[1:]) for name, x in observation.items()},
            discrete=at(arrays.get("action_discrete")),
            continuous=at(arrays.get("action_continuous")),
            action_mask=at(arrays.get("action_mask")),
            log_prob=always(arrays["log_prob"]),
            value=always(arrays["value"][:steps]),
            reward=always(targets.reward),
            advantage=at(targets.advantage),
            return_=at(targets.return_),
            keep=always(keep),
            terminated=in_time(arrays["terminated"]),
            cut=in_time(targets.cut),
            valid=in_time(arrays["valid"]),
            reset=None if reset is None else self._tensor(reset),
            reset_steps=() if reset is None else tuple(np.flatnonzero(reset[:rows].any(axis=1)).tolist()),
            rnn_state=self._tensor(arrays[RNN_STATE][piece]) if RNN_STATE in arrays else None,
            divisor=shared.divisor,
            moments=shared.moments,
            coefficients=shared.coefficients,
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()  # otherwise the copy would wait for earlier GPU work
        return tensor.to(self._device, non_blocking=True)


class _Shared(NamedTuple):
    """Fields shared by all parts of a minibatch; see :class:`rollmill.algorithms.batches.OnPolicyBatch`."""

    divisor: Tensor | float
    moments: Tensor | None
    coefficients: Mapping[str, Tensor | float]

"""Draws batches out of the replay: by priority, gathered into arrays of their own, never torn.

A draw looks at the tree once: leaves, priorities and generations are of one moment. Then observations and actions are
copied, while rollout workers go on writing elsewhere; and then the generations are looked at again. What was evicted
meanwhile, and may have been written over, is drawn anew. Here are single transitions;
:mod:`rollmill.storage.sequence_sampler` has sequences.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollmill.native import gather
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig

__all__ = ["Drawn", "ReplayBatch", "ReplaySampler", "ReturnRule", "Sampler"]

# A priority is 2^64 at most, whatever epsilon adds.
_LARGEST_ERROR = np.float32(2.0**63)
_AT_STEP = frozenset({"action_discrete", "action_continuous", "policy_version"})


@dataclass(frozen=True)
class ReturnRule:
    """How rewards add up.

    Attributes:
        discount: Gamma, for each agent step.
        scale: Factor on each reward.
        clip: Largest magnitude of a scaled reward; infinite for no such bound.
    """

    discount: float
    scale: float = 1.0
    clip: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is known of N samples of either kind.

    Attributes:
        leaf: int64 ``[N]``: which, for their new priorities.
        generation: int64 ``[N]``: of their slots, likewise.
        weight: float32 ``[N]``, importance weights.
        witness: int64 ``[N, 3]``: links to the slots that were read.
        at_step: Name -> ``[..., N, ...]``: actions, ``policy_version``.
    """

    leaf: NDArray[np.int64]
    generation: NDArray[np.int64]
    weight: NDArray[np.float32]
    witness: NDArray[np.int64]
    at_step: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.leaf)


@dataclass(frozen=True, kw_only=True)
class ReplayBatch(Drawn):
    """N transitions (x_t, a_t, R_t, x_{t+k}), k being n or as many steps as the episode had left.

    Attributes:
        reward: float32 ``[N]``, the discounted sum of k rewards.
        discount: float32 ``[N]``: gamma^k, 0 where the episode terminated.
        now: int64 ``[N]``: cell (slot * (T + 1) + t) * B + row of x_t.
        then: int64 ``[N]``: cell of x_{t+k}.
        observation: Name -> ``[N, ...]``, x_t, whole stacks.
        next_observation: Name -> ``[N, ...]``, x_{t+k}.
        action_mask: bool ``[N, mask_size]`` at x_t, or None.
        next_action_mask: Likewise at x_{t+k}.
    """

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    now: NDArray[np.int64]
    then: NDArray[np.int64]
    observation: Mapping[str, NDArray[Any]]
    next_observation: Mapping[str, NDArray[Any]]
    action_mask: NDArray[np.bool_] | None = None
    next_action_mask: NDArray[np.bool_] | None = None


Batch = TypeVar("Batch", bound=Drawn)


class Sampler(ABC, Generic[Batch]):
    """One learner's way into the replay; one thread at a time.

    Args:
        store: The replay.
        config: Priorities and weights.
        rule: How rewards add up.
        random: uint64 ``[2]``, a seed and a counter: the stream to draw from.
        empty: Makes the arrays that batches are gathered into, as ``np.empty`` does; page-locked ones, say.
    """

    def __init__(
        self,
        store: ReplayStore,
        config: ReplayConfig,
        rule: ReturnRule,
        random: NDArray[np.uint64],
        *,
        empty: Any = np.empty,
    ) -> None:
        self._store = store
        self._config = config
        self._random = random
        self._empty = empty
        self._frames = {name: a.reshape(-1, *a.shape[3:]) for name, a in store.observation.items()}
        self._at_step: dict[str, NDArray[Any]] = {
            name: array.reshape(-1, *array.shape[3:]) for name, array in store.arrays.items() if name in _AT_STEP
        }
        mask = store.arrays.get("action_mask")
        self._mask = None if mask is None else mask.reshape(-1, *mask.shape[3:])
        self._torn = np.empty(0, np.uint8)
        # Divided by the batch's largest at the end: what is drawn again belongs to the same batch.
        self._is_by_batch = config.is_prioritised and config.weights == "batch"
        # What every draw is told.
        self._how: Any = {
            "gamma": rule.discount,
            "reward_scale": rule.scale,
            "reward_clip": rule.clip,
            "weights": ("none" if self._is_by_batch else config.weights) if config.is_prioritised else "ones",
            "stratified": config.stratified,
        }

    @abstractmethod
    def make_batch(self, size: int) -> Batch:
        """Arrays for ``size`` samples; :meth:`draw` fills them, again and again."""

    def draw(self, batch: Batch, beta: float) -> bool:
        """Fills a batch.

        Args:
            batch: Of :meth:`make_batch`.
            beta: Exponent of the importance weights.

        Returns:
            Whether there was anything to draw.
        """
        if not self._draw(batch, beta):
            return False
        self._gather(batch)
        while len(again := self._find_torn(batch)):
            # A part of this size, from the tree as it is now.
            part = self.make_batch(len(again))
            if not self._draw(part, beta):
                return False
            self._gather(part)
            self._put(batch, again, part)
        if self._is_by_batch:
            np.divide(batch.weight, batch.weight.max(), out=batch.weight)
        return True

    def update(self, batch: Batch, td_error: NDArray[np.float32]) -> int:
        """Gives the batch's samples the priorities ``(|error| + epsilon)^alpha``.

        Args:
            batch: As it was drawn.
            td_error: Absolute and finite, ``[N]``; what is larger than a priority may be counts as that.

        Returns:
            How many were left as they were, because they have been evicted since.
        """
        config = self._config
        per_slot = self._store.topology.rollout_length * self._store.topology.group_rows
        return self._store.tree.update(
            batch.leaf,
            np.minimum(td_error, _LARGEST_ERROR),
            alpha=config.alpha,
            epsilon=config.epsilon,
            generations=batch.generation,
            current_generations=self._store.generation,
            rows_per_generation=per_slot,
            decay=config.max_priority_decay,
        )

    @abstractmethod
    def _draw(self, batch: Batch, beta: float) -> bool:
        """Leaves, weights, rewards and where everything else is."""

    @abstractmethod
    def _gather(self, batch: Batch) -> None:
        """Everything else."""

    @abstractmethod
    def _put(self, batch: Batch, places: NDArray[np.int64], part: Batch) -> None:
        """Writes a part over these places of a batch."""

    @property
    def _num_items(self) -> int:
        """Samples that the replay holds, about."""
        return max(1, self._store.size // self._store.stride)

    def _like(self, arrays: Mapping[str, NDArray[Any]], *lead: int, stacked: bool = False) -> dict[str, NDArray[Any]]:
        """An array ``[*lead, ...]`` for rows of each of these; ``stacked`` for whole stacks of frames."""
        stacks = self._store.stacks if stacked else {}
        return {
            name: self._empty((*lead, *((stacks[name].depth,) if name in stacks else ()), *a.shape[1:]), a.dtype)
            for name, a in arrays.items()
        }

    def _mask_like(self, *lead: int) -> NDArray[np.bool_] | None:
        return None if self._mask is None else self._empty((*lead, *self._mask.shape[1:]), np.bool_)

    def _gather_observation(self, into: Mapping[str, NDArray[Any]], cells: NDArray[np.int64]) -> None:
        """What stands at these cells, whole stacks."""
        for name, frames in self._frames.items():
            stack = self._store.stacks.get(name)
            if stack is None:
                gather(into[name], frames, cells, racing=True)
            else:
                self._store.slots.gather_stacks(into[name], frames, cells, repeat=stack.padding == "repeat")

    def _find_torn(self, batch: Batch) -> NDArray[np.int64]:
        if len(self._torn) != len(batch):
            self._torn = np.empty(len(batch), np.uint8)
        if not self._store.slots.find_torn(batch.witness, self._torn):
            return _NONE
        return np.flatnonzero(self._torn)


_NONE = np.empty(0, np.int64)


class ReplaySampler(Sampler[ReplayBatch]):
    """Draws single transitions; see :class:`Sampler`."""

    def make_batch(self, size: int) -> ReplayBatch:
        """Arrays for ``size`` transitions."""
        return ReplayBatch(
            leaf=self._empty(size, np.int64),
            generation=self._empty(size, np.int64),
            weight=self._empty(size, np.float32),
            reward=self._empty(size, np.float32),
            discount=self._empty(size, np.float32),
            now=self._empty(size, np.int64),
            then=self._empty(size, np.int64),
            witness=self._empty((size, 3), np.int64),
            observation=self._like(self._frames, size, stacked=True),
            next_observation=self._like(self._frames, size, stacked=True),
            at_step=self._like(self._at_step, size),
            action_mask=self._mask_like(size),
            next_action_mask=self._mask_like(size),
        )

    def _draw(self, batch: ReplayBatch, beta: float) -> bool:
        return self._store.slots.draw(
            self._random,
            batch.leaf,
            batch.generation,
            batch.weight,
            batch.reward,
            batch.discount,
            batch.now,
            batch.then,
            batch.witness,
            beta=beta,
            num_items=self._num_items,
            **self._how,
        )

    def _gather(self, batch: ReplayBatch) -> None:
        self._gather_observation(batch.observation, batch.now)
        self._gather_observation(batch.next_observation, batch.then)
        for name, array in self._at_step.items():
            gather(batch.at_step[name], array, batch.leaf, racing=True)
        if self._mask is not None:
            assert batch.action_mask is not None
            assert batch.next_action_mask is not None
            gather(batch.action_mask, self._mask, batch.now, racing=True)
            gather(batch.next_action_mask, self._mask, batch.then, racing=True)

    def _put(self, batch: ReplayBatch, places: NDArray[np.int64], part: ReplayBatch) -> None:
        for name in ("leaf", "generation", "weight", "reward", "discount", "now", "then", "witness"):
            getattr(batch, name)[places] = getattr(part, name)
        for name in ("observation", "next_observation", "at_step"):
            for entry, array in getattr(batch, name).items():
                array[places] = getattr(part, name)[entry]
        for name in ("action_mask", "next_action_mask"):
            if (mask := getattr(batch, name)) is not None:
                mask[places] = getattr(part, name)

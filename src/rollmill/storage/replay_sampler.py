"""Draws batches out of the replay: by priority, gathered into arrays of their own, never torn.

A draw reads the tree once, so that leaves, priorities and generations are consistent. Then observations and actions are
copied while rollout workers write to other slots, and the generations are checked again. Samples that were evicted
meanwhile, and may be overwritten, are drawn again. One native call does all of this for a batch. This module draws
single transitions; :mod:`rollmill.storage.sequence_sampler` draws sequences.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollmill.native import DrawRule, SlotBatch
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig

# A priority is 2^64 at most, whatever epsilon adds.
_LARGEST_ERROR = np.float32(2.0**63)
_AT_STEP = ("action_discrete", "action_continuous", "policy_version")


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
        leaf: int64 ``[N]``: (slot * T + t) * B + row of each sample's first step.
        weight: float32 ``[N]``, importance weights.
        at_step: Name -> ``[..., N, ...]``: actions, ``policy_version``.
        native: The same arrays, as :class:`rollmill.native.ReplaySlots` fills them.
    """

    leaf: NDArray[np.int64]
    weight: NDArray[np.float32]
    at_step: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    native: SlotBatch

    def __len__(self) -> int:
        return len(self.leaf)


@dataclass(frozen=True, kw_only=True)
class ReplayBatch(Drawn):
    """N transitions (x_t, a_t, R_t, x_{t+k}), k being n or as many steps as the episode had left.

    With several agents, n and k count turns, and x_{t+k} is the observation at which the row acts after them; where the
    episode terminated it is x_t, because nothing was written for an agent that does not act.

    Attributes:
        reward: float32 ``[N]``, the discounted sum of k rewards.
        discount: float32 ``[N]``: gamma^k, 0 where the episode terminated.
        observation: Name -> ``[N, ...]``, x_t, whole stacks.
        next_observation: Name -> ``[N, ...]``, x_{t+k}.
        action_mask: bool ``[N, mask_size]`` at x_t, or None.
        next_action_mask: Likewise at x_{t+k}.
    """

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    observation: Mapping[str, NDArray[Any]]
    next_observation: Mapping[str, NDArray[Any]]
    action_mask: NDArray[np.bool_] | None = None
    next_action_mask: NDArray[np.bool_] | None = None


Batch = TypeVar("Batch", bound=Drawn)

# An array of a batch, the shared array, which of its entries, and the padding of stacks of frames (None: no stacks), as
# :class:`rollmill.native.SlotBatch` takes them.
Copy: TypeAlias = tuple[NDArray[Any], NDArray[Any], str, Literal["zero", "repeat"] | None]


class Sampler(ABC, Generic[Batch]):
    """One learner's way into the replay, to the steps of its policy; one thread at a time.

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
        self._frames = {name: _rows(array) for name, array in store.observation.items()}
        self._shared = {name: _rows(array) for name, array in store.arrays.items()}
        self._set_rule(rule)

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
        num_items = max(1, self._store.size // self._store.stride)  # about
        return self._store.slots.sample(self._random, batch.native, self._rule, beta, num_items)

    def set_reward_scale(self, scale: float) -> None:
        """Scales the rewards of batches that are drawn from now on; called from any thread."""
        if scale != self._return_rule.scale:
            self._set_rule(replace(self._return_rule, scale=scale))

    def _set_rule(self, rule: ReturnRule) -> None:
        config = self._config
        self._return_rule = rule
        self._rule = DrawRule(
            gamma=rule.discount,
            reward_scale=rule.scale,
            reward_clip=rule.clip,
            weights=config.weights if config.is_prioritised else "ones",
            stratified=config.stratified,
        )

    def update(self, batch: Batch, td_error: NDArray[np.float32]) -> int:
        """Gives the batch's samples the priorities ``(|error| + epsilon)^alpha``.

        Args:
            batch: As it was drawn.
            td_error: Absolute and finite, ``[N]``; what is larger than a priority may be counts as that.

        Returns:
            How many were left as they were, because they have been evicted since.
        """
        config = self._config
        return self._store.slots.update(
            batch.native,
            np.minimum(td_error, _LARGEST_ERROR),
            alpha=config.alpha,
            epsilon=config.epsilon,
            decay=config.max_priority_decay,
        )

    def _array(self, name: str, lead: tuple[int, ...], entries: str, copies: list[Copy]) -> NDArray[Any]:
        """An array ``[*lead, ...]`` that entries of a shared array are copied into."""
        shared = self._shared[name]
        array: NDArray[Any] = self._empty((*lead, *shared.shape[1:]), shared.dtype)
        copies.append((array, shared, entries, None))
        return array

    def _observations(self, lead: tuple[int, ...], entries: str, copies: list[Copy]) -> dict[str, NDArray[Any]]:
        """Name -> an array ``[*lead, ...]`` that observations are copied into, whole stacks."""
        arrays = {}
        for name, frames in self._frames.items():
            stack = self._store.stacks.get(name)
            depth = () if stack is None else (stack.depth,)
            arrays[name] = self._empty((*lead, *depth, *frames.shape[1:]), frames.dtype)
            copies.append((arrays[name], frames, entries, None if stack is None else stack.padding))
        return arrays

    def _steps(self, lead: tuple[int, ...], copies: list[Copy]) -> dict[str, NDArray[Any]]:
        """Name -> an array ``[*lead, ...]`` that actions and policy versions are copied into."""
        return {name: self._array(name, lead, "steps", copies) for name in _AT_STEP if name in self._shared}

    def _mask(self, lead: tuple[int, ...], entries: str, copies: list[Copy]) -> NDArray[np.bool_] | None:
        """An array ``[*lead, mask_size]`` that action masks are copied into, if there are any."""
        return self._array("action_mask", lead, entries, copies) if "action_mask" in self._shared else None


class ReplaySampler(Sampler[ReplayBatch]):
    """Draws single transitions; see :class:`Sampler`."""

    def make_batch(self, size: int) -> ReplayBatch:
        """Arrays for ``size`` transitions."""
        copies: list[Copy] = []
        drawn: dict[str, Any] = {
            "leaf": self._empty(size, np.int64),
            "weight": self._empty(size, np.float32),
            "reward": self._empty(size, np.float32),
            "discount": self._empty(size, np.float32),
        }
        return ReplayBatch(
            **drawn,
            observation=self._observations((size,), "cells", copies),
            next_observation=self._observations((size,), "next_cells", copies),
            at_step=self._steps((size,), copies),
            action_mask=self._mask((size,), "cells", copies),
            next_action_mask=self._mask((size,), "next_cells", copies),
            native=SlotBatch(self._store.slots, **drawn, copies=copies, tree=self._store.policy),
        )


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    """``[num_slots, time, B, ...]`` as ``[num_slots * time * B, ...]``, the same memory."""
    return array.reshape(-1, *array.shape[3:])

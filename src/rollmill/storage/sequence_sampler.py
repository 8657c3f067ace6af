"""Draws batches of sequences out of the replay, for recurrent learners; time comes first, as they unroll it.

A sequence is a window of W steps and W + 1 observations, of one row, across slots and whatever ends in it, with the
recurrent state that the policy worker had before its first step::

      0 .. burn_in           burn_in .. burn_in + L              .. W
      the state is made      L steps that are learned from       n - 1 steps that only their returns need, and x_W

Returns are those of single transitions (Kapturowski et al. 2019, R2D2, section 2.3, uses the same n-step targets): up
to n rewards from each learned step, and which of the window's observations the bootstrap's value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.native import gather
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, ReplaySampler, ReturnRule, Sampler
from rollmill.storage.slots import RNN_STATE

__all__ = ["ReplaySequences", "SequenceSampler", "make_sampler"]


@dataclass(frozen=True, kw_only=True)
class ReplaySequences(Drawn):
    """N sequences, L learned steps each. What is ``at_step`` is ``[W, N, ...]``.

    Attributes:
        burn_in: Steps before the learned ones.
        reward: float32 ``[L, N]``, the discounted sum of k rewards; 0 where the step is not valid.
        discount: float32 ``[L, N]``: gamma^k, 0 where the episode terminated, or the step is not valid.
        then: int64 ``[L, N]``: which of the W + 1 observations x_{t+k} is.
        valid: bool ``[L, N]``: whether the step is a transition to learn from.
        cells: int64 ``[W + 1, N]``: cells of the observations.
        steps: int64 ``[W, N]``: (slot * T + t) * B + row of the steps.
        observation: Name -> ``[W + 1, N, ...]``, whole stacks.
        reset: bool ``[W + 1, N]``: the recurrent state is zeroed before x_t is consumed.
        rnn_state: float32 ``[N, S]``, before the first observation.
        action_mask: bool ``[W + 1, N, mask_size]``, or None.
    """

    burn_in: int
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    then: NDArray[np.int64]
    valid: NDArray[np.bool_]
    cells: NDArray[np.int64]
    steps: NDArray[np.int64]
    observation: Mapping[str, NDArray[Any]]
    reset: NDArray[np.bool_]
    rnn_state: NDArray[np.float32]
    action_mask: NDArray[np.bool_] | None = None

    @property
    def learned(self) -> slice:
        """The learned ones of the W steps."""
        return slice(self.burn_in, self.burn_in + len(self.reward))


class SequenceSampler(Sampler[ReplaySequences]):
    """Draws sequences; see :class:`rollmill.storage.replay_sampler.Sampler`."""

    def __init__(
        self,
        store: ReplayStore,
        config: ReplayConfig,
        rule: ReturnRule,
        random: NDArray[np.uint64],
        *,
        empty: Any = np.empty,
    ) -> None:
        super().__init__(store, config, rule, random, empty=empty)
        self._reset = store.arrays["reset"].reshape(-1)
        self._valid = store.arrays["valid"].reshape(-1)
        state = store.arrays[RNN_STATE]
        self._states = state.reshape(-1, state.shape[-1])

    def make_batch(self, size: int) -> ReplaySequences:
        """Arrays for ``size`` sequences."""
        window, length = self._config.window, self._config.sequence_length
        return ReplaySequences(
            burn_in=self._config.burn_in,
            leaf=self._empty(size, np.int64),
            generation=self._empty(size, np.int64),
            weight=self._empty(size, np.float32),
            reward=self._empty((length, size), np.float32),
            discount=self._empty((length, size), np.float32),
            then=self._empty((length, size), np.int64),
            valid=self._empty((length, size), np.bool_),
            cells=self._empty((window + 1, size), np.int64),
            steps=self._empty((window, size), np.int64),
            witness=self._empty((size, 3), np.int64),
            observation=self._like(self._frames, window + 1, size, stacked=True),
            reset=self._empty((window + 1, size), np.bool_),
            rnn_state=self._empty((size, self._states.shape[1]), np.float32),
            at_step=self._like(self._at_step, window, size),
            action_mask=self._mask_like(window + 1, size),
        )

    def _draw(self, batch: ReplaySequences, beta: float) -> bool:
        return self._store.slots.draw_windows(
            self._random,
            batch.leaf,
            batch.generation,
            batch.weight,
            batch.reward,
            batch.discount,
            batch.cells,
            batch.steps,
            batch.then,
            batch.witness,
            beta=beta,
            num_items=self._num_items,
            **self._how,
        )

    def _gather(self, batch: ReplaySequences) -> None:
        cells, steps = batch.cells.reshape(-1), batch.steps.reshape(-1)
        self._gather_observation({name: _rows(array) for name, array in batch.observation.items()}, cells)
        gather(batch.reset.reshape(-1), self._reset, cells, racing=True)
        gather(batch.valid.reshape(-1), self._valid, batch.steps[batch.learned].reshape(-1), racing=True)
        for name, array in self._at_step.items():
            gather(_rows(batch.at_step[name]), array, steps, racing=True)
        if self._mask is not None:
            assert batch.action_mask is not None
            gather(_rows(batch.action_mask), self._mask, cells, racing=True)
        # A slot keeps the state before every stride-th step.
        rows = self._store.topology.group_rows
        state = batch.leaf // (rows * self._store.stride) * rows + batch.leaf % rows
        gather(batch.rnn_state, self._states, state, racing=True)

    def _put(self, batch: ReplaySequences, places: NDArray[np.int64], part: ReplaySequences) -> None:
        for name in ("leaf", "generation", "weight", "witness", "rnn_state"):
            getattr(batch, name)[places] = getattr(part, name)
        for name in ("reward", "discount", "then", "valid", "cells", "steps", "reset"):
            getattr(batch, name)[:, places] = getattr(part, name)
        for name in ("observation", "at_step"):
            for entry, array in getattr(batch, name).items():
                array[:, places] = getattr(part, name)[entry]
        if batch.action_mask is not None:
            batch.action_mask[:, places] = part.action_mask


def make_sampler(
    store: ReplayStore,
    config: ReplayConfig,
    rule: ReturnRule,
    random: NDArray[np.uint64],
    *,
    empty: Any = np.empty,
) -> Sampler[Any]:
    """Of sequences or of single transitions, as ``config`` has it; see :class:`Sampler`."""
    kind: type[Sampler[Any]] = SequenceSampler if config.has_sequences else ReplaySampler
    return kind(store, config, rule, random, empty=empty)


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    """``[time, N, ...]`` as ``[time * N, ...]``, the same memory."""
    return array.reshape(-1, *array.shape[2:])

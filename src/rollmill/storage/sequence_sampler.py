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

from rollmill.native import SlotBatch
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Copy, Drawn, ReplaySampler, ReturnRule, Sampler
from rollmill.storage.slots import RNN_STATE


@dataclass(frozen=True, kw_only=True)
class ReplaySequences(Drawn):
    """N sequences, L learned steps each. What is ``at_step`` is ``[W, N, ...]``.

    Attributes:
        burn_in: Steps before the learned ones.
        reward: float32 ``[L, N]``, the discounted sum of k rewards; 0 where the step is not valid.
        discount: float32 ``[L, N]``: gamma^k, 0 where the episode terminated, or the step is not valid.
        then: int64 ``[L, N]``: which of the W + 1 observations x_{t+k} is.
        valid: bool ``[L, N]``: whether the step is a transition to learn from.
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

    def make_batch(self, size: int) -> ReplaySequences:
        """Arrays for ``size`` sequences."""
        window, learned = self._config.window, (self._config.sequence_length, size)
        at_cells = (window + 1, size)
        copies: list[Copy] = []
        drawn: dict[str, Any] = {
            "leaf": self._empty(size, np.int64),
            "weight": self._empty(size, np.float32),
            "reward": self._empty(learned, np.float32),
            "discount": self._empty(learned, np.float32),
            "then": self._empty(learned, np.int64),
        }
        return ReplaySequences(
            **drawn,
            burn_in=self._config.burn_in,
            valid=self._array("valid", learned, "learned_steps", copies),
            observation=self._observations(at_cells, "cells", copies),
            reset=self._array("reset", at_cells, "cells", copies),
            # The slots have room for the widest of several policies' states.
            rnn_state=self._array(RNN_STATE, (size,), "states", copies)[:, : self._store.state_size],
            at_step=self._steps((window, size), copies),
            action_mask=self._mask(at_cells, "cells", copies),
            native=SlotBatch(self._store.slots, **drawn, copies=copies, tree=self._store.policy),
        )


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

"""The policy worker's loop: collect ready groups, run one forward pass, write actions into their slots.

Everything it writes carries the version of the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.algorithms.base import Action
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.envs.random_actions import random_actions
from rollmill.inference.acting_weights import ActingAlgorithm, ActingWeights
from rollmill.inference.action_checks import check_action
from rollmill.inference.batching import Batching
from rollmill.inference.config import InferenceConfig
from rollmill.inference.explorers import Explorer
from rollmill.inference.observation_readers import ObservationReader
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.roles import InferenceCounter, InferencePhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, encode

_POLL_S = 0.2


class PolicyWorker:
    """Answers the requests of its groups until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        index: Index of this policy worker, and its lane in every inbox.
        action: The action spec, in the format of slots.
        config: The configuration, with a resolved precision.
        device: The worker's device.
        batching: Groups requests into batches.
        weights: Chooses the weights of a batch.
        reader: Reads x_t.
        explorer: Builds the exploration context.
        states: Recurrent states.
        seed: Keys random actions.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        *,
        index: int,
        action: ActionSpec,
        config: InferenceConfig,
        device: torch.device,
        batching: Batching,
        weights: ActingWeights,
        reader: ObservationReader,
        explorer: Explorer,
        states: RecurrentStates,
        seed: int,
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._index = index
        self._action = action
        self._skips_policy = config.skip_policy
        self._bf16 = not config.skip_policy and config.precision == "bf16"
        self._device = device
        self._batching = batching
        self._weights = weights
        self._reader = reader
        self._explorer = explorer
        self._states = states
        self._rows = store.topology.group_rows
        self._rollout_length = store.topology.rollout_length
        self._worker_of_group = np.asarray(store.topology.worker_of_group, np.int64)
        self._mask = store.arrays.get("action_mask")
        self._random = np.random.default_rng(seed)

    @torch.inference_mode()
    def run(self) -> None:
        """Serve requests until the stop flag is set."""
        if not self._skips_policy and not self._await_first_weights():
            return
        while not self._context.stop.is_set():
            self._ledger.enter(InferencePhase.WAITING)
            for groups in self._batching.batches():
                self.answer(groups)

    def answer(self, groups: NDArray[np.int64]) -> None:
        """Answer the requests of these groups, int64 ``[n]``, with one forward pass."""
        self._context.inject_delay()
        self._compute(groups)
        self._send(groups)

    def _await_first_weights(self) -> bool:
        """Wait for the learner's initial weights; False if the run ends first."""
        self._ledger.enter(InferencePhase.WAITING)
        while not self._weights.await_first(_POLL_S):
            self._ledger.enter(InferencePhase.WAITING)  # a sign of life
            if self._context.stop.is_set():
                return False
        return True

    def _compute(self, groups: NDArray[np.int64]) -> None:
        """Run one forward pass for these groups, int64 ``[n]``, and write its results into their slots."""
        store = self._store
        slots, steps = store.group_slot[groups], store.group_step[groups]
        mask = None if self._mask is None else self._mask[slots, steps].reshape(len(groups) * self._rows, -1)
        if self._skips_policy:
            drawn = random_actions(self._action, mask, len(groups) * self._rows, self._random)
            self._write_actions(slots, steps, *drawn)
            return
        self._ledger.enter(InferencePhase.LOADING)
        acting = self._weights.acting_for(groups)
        self._ledger.enter(InferencePhase.GATHERING)
        observation = self._reader.read(groups, slots, steps)
        reset = torch.from_numpy(store.arrays["reset"][slots, steps].reshape(-1)).to(self._device)
        state = self._states.take(groups, slots, steps)
        self._ledger.enter(InferencePhase.FORWARD)
        if steps[0] == self._rollout_length:
            # x_T: its value completes the slot. Its action is chosen as x_0 of the next slot, by the version used
            # there.
            assert isinstance(acting.algorithm, OnPolicyAlgorithm), "replays need no values"
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                value = acting.algorithm.value(observation, state, reset)
            self._ledger.enter(InferencePhase.SCATTERING)
            store.arrays["value"][slots, steps] = value.cpu().numpy().reshape(len(groups), self._rows)
            self._states.share(groups)
            return
        explore = self._explorer.explore(groups, steps, reset, mask)
        on_device = None if mask is None else torch.from_numpy(mask).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            action, state = acting.algorithm.act_with_state(observation, state, reset, on_device, explore)
        if not acting.is_on_policy:
            check_action(acting.algorithm, action, self._action, len(groups) * self._rows)
        self._states.keep(groups, state)
        self._write(acting, action, groups, slots, steps)

    def _write(
        self,
        acting: ActingAlgorithm,
        action: Action,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
    ) -> None:
        """Scatter the algorithm's results into the slots."""
        arrays = self._store.arrays
        discrete, continuous = action.discrete, action.continuous
        self._write_actions(
            slots,
            steps,
            None if discrete is None else discrete.cpu().numpy(),
            None if continuous is None else continuous.float().cpu().numpy(),
        )
        self._ledger.enter(InferencePhase.SCATTERING)
        arrays["policy_version"][slots, steps] = acting.version
        if action.log_prob is None or action.value is None:
            return
        shape = len(slots), self._rows
        value = action.value.cpu().numpy().reshape(shape)
        arrays["log_prob"][slots, steps] = action.log_prob.cpu().numpy().reshape(shape)
        arrays["value"][slots, steps] = value
        previous = self._store.group_previous_slot[groups]
        bootstraps = previous != NO_SLOT
        if bootstraps.any():
            arrays["value"][previous[bootstraps], self._rollout_length] = value[bootstraps]

    def _write_actions(
        self,
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        discrete: NDArray[Any] | None,
        continuous: NDArray[Any] | None,
    ) -> None:
        """Scatter the actions ``[n * B, ...]`` into the slots."""
        arrays = self._store.arrays
        if discrete is not None:
            arrays["action_discrete"][slots, steps] = discrete.reshape(len(slots), self._rows, -1)
        if continuous is not None:
            arrays["action_continuous"][slots, steps] = continuous.reshape(len(slots), self._rows, -1)

    def _send(self, groups: NDArray[np.int64]) -> None:
        """Notify the rollout workers of these groups."""
        store = self._store
        self._ledger.enter(InferencePhase.SCATTERING)
        for group in groups.tolist():
            delivered = store.inboxes[self._worker_of_group[group]].put(self._index, encode(ACTIONS, group))
            assert delivered, "the inbox must have room for every group"
        self._ledger.add(InferenceCounter.ROWS, len(groups) * self._rows)
        self._ledger.add(InferenceCounter.BATCHES, 1)

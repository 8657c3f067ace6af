"""The policy worker's loop: collect the groups that are ready, one forward pass, write actions beside observations.

Before each batch it looks for newer weights, and it stamps what it writes with the version it used. Recurrent state
stays here, on the worker's device, because a group always comes back to the same policy worker; a slot only gets the
state from before its x_0.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.envs.random_actions import random_actions
from rollmill.inference.batching import Batching, ReadyGroups
from rollmill.inference.config import InferenceConfig
from rollmill.inference.phases import FORWARD, GATHERING, LOADING, SCATTERING, WAITING
from rollmill.inference.precision import faster_precision
from rollmill.models.actor_critic import ActorCritic, ActorCriticOutput
from rollmill.models.device import take_device
from rollmill.models.distributions import Sample
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import lower_weights
from rollmill.models.precision import wide
from rollmill.native import gather
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, encode
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore

_POLL_S = 0.2


@dataclass
class _Copy:
    """A copy of the network, the bytes that its weights are read into, and their version."""

    model: ActorCritic
    flat: FlatState
    version: int = NOT_PUBLISHED


class PolicyWorker:
    """Answers the requests of the groups that are bound to it, until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        weights: Where the learner publishes.
        index: Which policy worker this is; its lane in every inbox.
        model: A copy of the policy's network; its values are replaced by what is published.
        action: The action spec.
        config: Batching, device and precision ("auto" resolved by now).
        seed: Keys this worker's sampling noise.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        weights: WeightStore,
        index: int,
        model: ActorCritic,
        *,
        action: ActionSpec,
        config: InferenceConfig,
        seed: int,
    ) -> None:
        """Moves the model to its device and allocates everything that the loop needs."""
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._weights = weights
        self._index = index
        self._config = config
        self._action = action
        topology = store.topology
        self._rows = topology.group_rows
        self._device = take_device(config.device)
        self._on_cpu = self._device.type == "cpu"
        model = model.to(self._device)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._random = np.random.default_rng(seed)

        groups = topology.groups_of_policy_worker(index)
        self._place_of_group = np.full(topology.num_groups, -1, np.int64)
        self._place_of_group[groups] = np.arange(len(groups))
        self._state = (
            torch.zeros(len(groups), self._rows, model.state_size, device=self._device) if model.state_size else None
        )
        self._worker_of_group = np.asarray(topology.worker_of_group, np.int64)
        self._batching = self._make_batching(config)
        # Observation blocks [num_slots * (T + 1), B, ...]: a group's x_t is one row of this view, contiguous.
        self._blocks = {name: a.reshape(-1, *a.shape[2:]) for name, a in store.observation.items()}
        # Page-locked for a GPU, which copies from it without a detour.
        self._staging = {
            name: torch.empty(
                (self._batching.max_groups, *block.shape[1:]),
                dtype=torch.from_numpy(block[:0]).dtype,
                pin_memory=not self._on_cpu,
            ).numpy()
            for name, block in self._blocks.items()
        }
        self._mask = store.arrays.get("action_mask")
        self._bf16 = not config.skip_policy and self._precision(model, config) == "bf16"
        copies = [model, *(copy.deepcopy(model) for _ in range(self._num_versions() - 1))]
        self._copies = [_Copy(each, FlatState(each, alias=self._on_cpu)) for each in copies]
        if self._bf16:
            for each in copies:
                lower_weights(each, torch.bfloat16)
        self._acting = self._copies[0]

    def _precision(self, model: ActorCritic, config: InferenceConfig) -> str:
        if config.precision != "auto":
            return config.precision
        # Slot contents may be anything yet, so zeros of the same shape stand for them.
        rows = self._batching.min_groups * self._rows
        observation = {
            name: torch.zeros((rows, *block.shape[2:]), dtype=torch.from_numpy(block[:0]).dtype, device=self._device)
            for name, block in self._blocks.items()
        }
        return faster_precision(model, observation)

    @torch.inference_mode()
    def run(self) -> None:
        """Serves until the stop flag is set."""
        if not self._config.skip_policy and not self._await_first_weights():
            return
        while not self._context.stop.is_set():
            self._ledger.enter(WAITING)
            for groups in self._batching.batches():
                self._answer(groups)

    def _num_versions(self) -> int:
        """How many versions of the weights are in use at once."""
        return 1

    def _make_batching(self, config: InferenceConfig) -> Batching:
        return ReadyGroups(self._store, self._index, config, self._context.stop, on_cpu=self._on_cpu)

    def _await_first_weights(self) -> bool:
        """Waits for the learner's initial weights; False when the run ends before they come."""
        self._ledger.enter(WAITING)
        while not self._weights.wait_for(0, timeout_s=_POLL_S):
            if self._context.stop.is_set():
                return False
        return True

    def _load(self, groups: NDArray[np.int64]) -> None:
        """Takes the weights to answer these groups with: the newest, if they are newer than the worker's."""
        self._ledger.enter(LOADING)
        acting = self._acting
        version = self._weights.read_newest(acting.flat.bytes, unless=acting.version)
        if version != acting.version:
            acting.flat.unpack()
            acting.version = version

    def _answer(self, groups: NDArray[np.int64]) -> None:
        """One forward pass for these groups; int64 ``[n]`` group indices."""
        self._context.dawdle()
        store, rows = self._store, self._rows
        slots, steps = store.group_slot[groups], store.group_step[groups]
        alive = store.generation[slots] == store.group_generation[groups]
        if not alive.all():
            # The slot was reclaimed from a dead rollout worker after the request was made: nobody waits for an answer.
            groups, slots, steps = groups[alive], slots[alive], steps[alive]
            if not len(groups):
                return
        mask = None if self._mask is None else self._mask[slots, steps].reshape(len(groups) * rows, -1)
        if self._config.skip_policy:
            discrete, continuous = random_actions(self._action, mask, len(groups) * rows, self._random)
            self._write_actions(slots, steps, discrete, continuous)
        else:
            self._load(groups)
            self._infer(groups, slots, steps, mask)
        self._ledger.enter(SCATTERING)
        for group in groups.tolist():
            delivered = store.inboxes[self._worker_of_group[group]].put(self._index, encode(ACTIONS, group))
            assert delivered, "the inbox holds a place for every group"
        self._ledger.add(0, len(groups) * rows)
        self._ledger.add(1, 1)

    def _infer(
        self,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Forward pass, sampling, and everything that is written beside x_t."""
        store = self._store
        arrays, rows = store.arrays, self._rows
        output = self._forward(groups, slots, steps)
        params = wide(output.params)
        distribution = self._acting.model.distribution
        mask_tensor = None if mask is None else torch.from_numpy(mask).to(self._device)
        if self._config.random_actions:
            drawn = random_actions(self._action, mask, len(groups) * rows, self._random)
            discrete, continuous = (None if a is None else torch.from_numpy(a).to(self._device) for a in drawn)
            log_prob = distribution.log_prob(params, discrete, continuous, mask_tensor)
        else:
            discrete, continuous, log_prob = self._sample(params, mask_tensor, groups, steps)
        if self._state is not None:
            assert output.rnn_state is not None
            self._state[self._place_of_group[groups]] = output.rnn_state.float().view(len(groups), rows, -1)
        self._write_actions(
            slots,
            steps,
            None if discrete is None else discrete.cpu().numpy(),
            None if continuous is None else continuous.cpu().numpy(),
        )
        self._ledger.enter(SCATTERING)
        value = output.value.float().cpu().numpy().reshape(len(groups), rows)
        arrays["log_prob"][slots, steps] = log_prob.cpu().numpy().reshape(len(groups), rows)
        arrays["value"][slots, steps] = value
        arrays["policy_version"][slots, steps] = self._acting.version
        previous = store.group_previous_slot[groups]
        bootstraps = previous != NO_SLOT
        if bootstraps.any():
            arrays["value"][previous[bootstraps], store.topology.rollout_length] = value[bootstraps]

    def _forward(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> ActorCriticOutput:
        """The network for x_t of these groups; what it gives is ``[n * B, ...]``."""
        self._ledger.enter(GATHERING)
        observation = self._observation(slots, steps)
        reset = torch.from_numpy(self._store.arrays["reset"][slots, steps].reshape(-1)).to(self._device)
        state = self._take_state(groups, slots, steps)
        self._ledger.enter(FORWARD)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            output: ActorCriticOutput = self._acting.model(observation, state, reset)
        return output

    def _sample(
        self, params: Tensor, mask: Tensor | None, groups: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Sample:
        """Actions for ``params [n * B, P]``, with this worker's own noise."""
        return self._acting.model.distribution.sample_with_log_prob(params, mask, self._generator)

    def _observation(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``: on a CPU a view of the slot for one group, else one gather."""
        if len(slots) > 1 or not self._on_cpu:
            return self._gathered(slots, steps)
        place = slots[0] * (self._store.topology.rollout_length + 1) + steps[0]
        return {name: torch.from_numpy(blocks[place]) for name, blocks in self._blocks.items()}

    def _gathered(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``, copied into memory that the next call overwrites."""
        index = slots * (self._store.topology.rollout_length + 1) + steps
        result = {}
        for name, blocks in self._blocks.items():
            block = self._staging[name][: len(index)]
            gather(block, blocks, index)
            rows = torch.from_numpy(block.reshape(-1, *blocks.shape[2:]))
            result[name] = rows.to(self._device, non_blocking=True)
        return result

    def _take_state(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Tensor | None:
        """The groups' recurrent state ``[n * B, S]``; stored in the slots that begin now."""
        if self._state is None:
            return None
        state = self._state[self._place_of_group[groups]]
        begins = steps == 0
        if begins.any():
            self._store.arrays["rnn_state"][slots[begins]] = state[torch.from_numpy(begins)].cpu().numpy()
        return state.view(len(groups) * self._rows, -1)

    def _write_actions(
        self,
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        discrete: NDArray[np.int32] | None,
        continuous: NDArray[np.float32] | None,
    ) -> None:
        """Scatters the actions ``[n * B, ...]`` into the slots."""
        arrays = self._store.arrays
        if discrete is not None:
            arrays["action_discrete"][slots, steps] = discrete.reshape(len(slots), self._rows, -1)
        if continuous is not None:
            arrays["action_continuous"][slots, steps] = continuous.reshape(len(slots), self._rows, -1)

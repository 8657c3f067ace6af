"""The policy worker's loop: collect the groups that are ready, one forward pass, write actions beside observations.

Before each batch it looks for newer weights, and it stamps what it writes with the version it used. Recurrent state
stays here, on the worker's device, because a group always comes back to the same policy worker; a slot only gets the
state from before its x_0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.envs.random_actions import random_actions
from rollmill.inference.config import InferenceConfig
from rollmill.inference.phases import FORWARD, GATHERING, LOADING, SCATTERING, WAITING
from rollmill.inference.precision import faster_precision
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.device import take_device
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import lower_weights
from rollmill.native import gather
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, encode
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore

_POLL_S = 0.2
# A worker that sleeps until several groups have come looks up after ``max_wait_us``, even if none has.
_WORTH_SLEEPING_S = 0.005
# On the CPU a forward pass of this many rows costs about as little a row as larger ones do.
_ENOUGH_ROWS = 32


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
        self._model = model.to(self._device)
        self._flat = FlatState(self._model, alias=self._on_cpu)
        self._version = NOT_PUBLISHED
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._random = np.random.default_rng(seed)

        groups = topology.groups_of_policy_worker(index)
        self._place_of_group = np.full(topology.num_groups, -1, np.int64)
        self._place_of_group[groups] = np.arange(len(groups))
        self._state = (
            torch.zeros(len(groups), self._rows, model.state_size, device=self._device) if model.state_size else None
        )
        self._worker_of_group = np.asarray(topology.worker_of_group, np.int64)
        self._requests = store.requests[index]
        self._groups = np.asarray(groups, np.int64)
        self._pending: NDArray[np.int64] = np.empty(topology.num_groups, np.int64)
        limit = config.max_batch_rows
        self._max_groups = len(groups) if limit == "auto" else max(1, limit // self._rows)
        self._min_groups = max(1, min(self._groups_worth_waiting_for(config), len(groups), self._max_groups))
        self._max_wait_s = config.max_wait_us * 1e-6
        self._may_sleep_for_more = self._may_always_wait()
        # Observation blocks [num_slots * (T + 1), B, ...]: a group's x_t is one row of this view, contiguous.
        self._blocks = {name: a.reshape(-1, *a.shape[2:]) for name, a in store.observation.items()}
        # Page-locked for a GPU, which copies from it without a detour.
        self._staging = {
            name: torch.empty(
                (self._max_groups, *block.shape[1:]),
                dtype=torch.from_numpy(block[:0]).dtype,
                pin_memory=not self._on_cpu,
            ).numpy()
            for name, block in self._blocks.items()
        }
        self._mask = store.arrays.get("action_mask")
        self._bf16 = False
        if not config.skip_policy:
            self._bf16 = self._precision(config) == "bf16"
        if self._bf16:
            lower_weights(self._model, torch.bfloat16)

    def _precision(self, config: InferenceConfig) -> str:
        if config.precision != "auto":
            return config.precision
        # Slot contents may be anything yet, so zeros of the same shape stand for them.
        rows = self._min_groups * self._rows
        observation = {
            name: torch.zeros((rows, *block.shape[2:]), dtype=torch.from_numpy(block[:0]).dtype, device=self._device)
            for name, block in self._blocks.items()
        }
        return faster_precision(self._model, observation)

    @torch.inference_mode()
    def run(self) -> None:
        """Serves until the stop flag is set."""
        if not self._config.skip_policy and not self._await_first_weights():
            return
        while not self._context.stop.is_set():
            self._ledger.enter(WAITING)
            waiting = self._collect()
            for first in range(0, waiting, self._max_groups):
                self._answer(self._pending[first : min(first + self._max_groups, waiting)])

    def _groups_worth_waiting_for(self, config: InferenceConfig) -> int:
        if config.min_batch_groups != "auto":
            return config.min_batch_groups
        return 2 if self._on_cpu and self._rows < _ENOUGH_ROWS else 1

    def _collect(self) -> int:
        """Waits for requests, a moment at most; returns how many there are, with their groups in ``_pending``."""
        if not self._may_sleep_for_more or self._store.group_is_parked.any():
            waiting = self._requests.get_many(self._pending, _POLL_S)
            return self._wait_for_more(waiting, time.monotonic() + self._max_wait_s)
        deadline = time.monotonic() + self._max_wait_s
        # Whoever the first of them are, the rest can be waited for: this process is woken once for all of them.
        waiting = self._requests.get_many(self._pending, min(self._max_wait_s, _POLL_S), self._min_groups)
        return self._wait_for_more(waiting, deadline)

    def _may_always_wait(self) -> bool:
        """Whether any ``min_groups`` - 1 groups may be waited with, as long as none is without a slot.

        They leave each rollout worker another group of this policy worker's to step, and are less than half of all.
        """
        others = self._min_groups - 1
        _, groups_of_worker = np.unique(self._worker_of_group[self._groups], return_counts=True)
        if others == 0 or 2 * others >= len(self._groups) or self._max_wait_s < _WORTH_SLEEPING_S:
            return False
        return bool((groups_of_worker > others).all())

    def _wait_for_more(self, waiting: int, deadline: float) -> int:
        """Waits for as many groups as are worth a batch, while it costs nobody's time; returns how many there are."""
        if not waiting:
            return waiting
        while waiting < self._min_groups and not self._context.stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0 or not self._may_wait(self._pending[:waiting]):
                break
            # Each group that comes, or has to wait for a slot, may leave its rollout worker with nothing to step.
            waiting += self._requests.get_many(self._pending[waiting:], min(left, _POLL_S))
        return waiting

    def _may_wait(self, pending: NDArray[np.int64]) -> bool:
        """Whether the rollout workers of these groups, int64 ``[n]``, have others to step meanwhile.

        And whether these are less than half of this worker's groups under way, so that simulation and inference
        overlap. A group that waits for another policy worker counts as one that is stepped.
        """
        store, worker_of_group = self._store, self._worker_of_group
        stepping = ~store.group_is_parked
        if 2 * len(pending) >= int(np.count_nonzero(stepping[self._groups])):
            return False
        stepping[pending] = False
        busy = np.zeros(store.topology.num_workers, np.bool_)
        busy[worker_of_group[stepping]] = True
        return bool(busy[worker_of_group[pending]].all())

    def _await_first_weights(self) -> bool:
        """Waits for the learner's initial weights; False when the run ends before they come."""
        self._ledger.enter(WAITING)
        while not self._weights.wait_for_first(timeout_s=_POLL_S):
            if self._context.stop.is_set():
                return False
        return True

    def _load_newest(self) -> None:
        """Takes the newest weights, if they are newer than the worker's."""
        self._ledger.enter(LOADING)
        version = self._weights.read_newest(self._flat.bytes, unless=self._version)
        if version != self._version:
            self._flat.unpack()
            self._version = version

    def _answer(self, groups: NDArray[np.int64]) -> None:
        """One forward pass for these groups; int64 ``[n]`` group indices."""
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
            self._load_newest()
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
        self._ledger.enter(GATHERING)
        observation = self._observation(slots, steps)
        reset = torch.from_numpy(arrays["reset"][slots, steps].reshape(-1)).to(self._device)
        state = self._take_state(groups, slots, steps)
        self._ledger.enter(FORWARD)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            output = self._model(observation, state, reset)
        params = output.params.float()
        distribution = self._model.distribution
        mask_tensor = None if mask is None else torch.from_numpy(mask).to(self._device)
        if self._config.random_actions:
            drawn = random_actions(self._action, mask, len(groups) * rows, self._random)
            discrete, continuous = (None if a is None else torch.from_numpy(a).to(self._device) for a in drawn)
            log_prob = distribution.log_prob(params, discrete, continuous, mask_tensor)
        else:
            discrete, continuous, log_prob = distribution.sample_with_log_prob(params, mask_tensor, self._generator)
        if self._state is not None:
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
        arrays["policy_version"][slots, steps] = self._version
        previous = store.group_previous_slot[groups]
        bootstraps = previous != NO_SLOT
        if bootstraps.any():
            arrays["value"][previous[bootstraps], store.topology.rollout_length] = value[bootstraps]

    def _observation(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``: on a CPU a view of the slot for one group, else one gather."""
        index = slots * (self._store.topology.rollout_length + 1) + steps
        result = {}
        for name, blocks in self._blocks.items():
            if len(index) == 1 and self._on_cpu:
                block = blocks[index[0]]
            else:
                block = self._staging[name][: len(index)]
                gather(block, blocks, index)
                block = block.reshape(-1, *blocks.shape[2:])
            result[name] = torch.from_numpy(block).to(self._device, non_blocking=True)
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

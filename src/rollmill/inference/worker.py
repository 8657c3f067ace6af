"""The policy worker's loop: collect the groups that are ready, one forward pass, write actions beside observations.

Before each batch it looks for newer weights, and it stamps what it writes with the version it used. What it computes is
its kind's: see :mod:`rollmill.inference.actor_critic` and :mod:`rollmill.inference.replay`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.envs.random_actions import random_actions
from rollmill.inference.batching import Batching, ReadyGroups
from rollmill.inference.config import InferenceConfig
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.device import take_device
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import lower_weights
from rollmill.roles import InferenceCounter, InferencePhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, RNN_STATE, SlotStore, encode
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore

_POLL_S = 0.2


Model = TypeVar("Model", bound=ActorCritic | OffPolicyAlgorithm)


@dataclass
class _Copy(Generic[Model]):
    """A copy of the network, the bytes that its weights are read into, and their version."""

    model: Model
    flat: FlatState
    version: int = NOT_PUBLISHED


class PolicyWorker(ABC, Generic[Model]):
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
        model: Model,
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
        model.to(self._device)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._random = np.random.default_rng(seed)

        self._worker_of_group = np.asarray(topology.worker_of_group, np.int64)
        self._batching = self._make_batching(config)
        self._mask = store.arrays.get("action_mask")
        # Recurrent state stays here, on the device: a group always comes back to the same policy worker.
        groups = topology.groups_of_policy_worker(index)
        self._place_of_group = np.full(topology.num_groups, -1, np.int64)
        self._place_of_group[groups] = np.arange(len(groups))
        self._state: Tensor | None = None
        if model.state_size:
            # In the precision that slots keep it in.
            dtype = torch.from_numpy(store.arrays[RNN_STATE][:0]).dtype
            self._state = torch.zeros(len(groups), self._rows, model.state_size, dtype=dtype, device=self._device)
        self._prepare(model)
        model.eval()  # a user's own network may have layers that learn otherwise than they act
        self._bf16 = not config.skip_policy and config.precision == "bf16"
        copies = [model, *(copy.deepcopy(model) for _ in range(self._num_versions() - 1))]
        self._copies = [_Copy(each, FlatState(self._published_part(each), alias=self._on_cpu)) for each in copies]
        if self._bf16:
            for each in copies:
                lower_weights(each, torch.bfloat16)
        self._acting = self._copies[0]

    def _prepare(self, model: Model) -> None:
        """Allocates what else answering needs."""

    def _published_part(self, model: Model) -> nn.Module:
        """The part of it whose weights the learner publishes."""
        return model

    @abstractmethod
    def _infer(
        self,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Forward pass, and everything that is written beside x_t."""

    @abstractmethod
    def _store_state(self, slots: NDArray[np.int64], steps: NDArray[np.int64], state: Tensor) -> None:
        """Writes the recurrent state ``[n, B, S]`` from before x_t into those slots that keep it at this step."""

    @torch.inference_mode()
    def run(self) -> None:
        """Serves until the stop flag is set."""
        if not self._config.skip_policy and not self._await_first_weights():
            return
        while not self._context.stop.is_set():
            self._ledger.enter(InferencePhase.WAITING)
            for groups in self._batching.batches():
                self._answer(groups)

    def _num_versions(self) -> int:
        """How many versions of the weights are in use at once."""
        return 1

    def _make_batching(self, config: InferenceConfig) -> Batching:
        return ReadyGroups(self._store, self._index, config, self._context.stop, on_cpu=self._on_cpu)

    def _await_first_weights(self) -> bool:
        """Waits for the learner's initial weights; False when the run ends before they come."""
        self._ledger.enter(InferencePhase.WAITING)
        while not self._weights.wait_for(self._first_version(), timeout_s=_POLL_S):
            self._ledger.enter(InferencePhase.WAITING)  # Again: a sign of life.
            if self._context.stop.is_set():
                return False
        return True

    def _first_version(self) -> int:
        """Of the weights that the first batch needs, at least."""
        return 0

    def _load(self, groups: NDArray[np.int64]) -> None:
        """Takes the weights to answer these groups with: the newest, if they are newer than the worker's."""
        self._ledger.enter(InferencePhase.LOADING)
        acting = self._acting
        version = self._weights.read_newest(acting.flat.bytes, unless=acting.version)
        if version != acting.version:
            acting.flat.unpack()
            acting.version = version

    def _answer(self, groups: NDArray[np.int64]) -> None:
        """One forward pass for these groups; int64 ``[n]`` group indices."""
        self._context.inject_delay()
        store, rows = self._store, self._rows
        slots, steps = store.group_slot[groups], store.group_step[groups]
        mask = None if self._mask is None else self._mask[slots, steps].reshape(len(groups) * rows, -1)
        if self._config.skip_policy:
            discrete, continuous = random_actions(self._action, mask, len(groups) * rows, self._random)
            self._write_actions(slots, steps, discrete, continuous)
        else:
            self._load(groups)
            self._infer(groups, slots, steps, mask)
        self._ledger.enter(InferencePhase.SCATTERING)
        for group in groups.tolist():
            delivered = store.inboxes[self._worker_of_group[group]].put(self._index, encode(ACTIONS, group))
            assert delivered, "the inbox holds a place for every group"
        self._ledger.add(InferenceCounter.ROWS, len(groups) * rows)
        self._ledger.add(InferenceCounter.BATCHES, 1)

    def _take_state(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Tensor | None:
        """The groups' recurrent state ``[n * B, S]`` from before x_t; None without a core."""
        if self._state is None:
            return None
        state = self._state[self._place_of_group[groups]]
        self._store_state(slots, steps, state)
        return state.view(len(groups) * self._rows, -1)

    def _keep_state(self, groups: NDArray[np.int64], state: Tensor | None) -> None:
        """Keeps the state ``[n * B, S]`` from behind x_t for the groups' next steps."""
        if self._state is not None:
            assert state is not None
            self._state[self._place_of_group[groups]] = state.view(len(groups), self._rows, -1).to(self._state.dtype)

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

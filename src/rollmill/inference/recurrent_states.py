"""Recurrent states of a policy worker's groups: kept on its device, and written into slots for learners.

A group always uses the same policy worker, so only the states at certain steps leave the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.inference.requests import Requests
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import RNN_STATE, SlotStore


class RecurrentStates:
    """Recurrent states of one policy worker's groups; does nothing without a recurrent core.

    Args:
        store: The slots. A replay's slots store states where sequences may begin, others at x_0.
        groups: The policy worker's groups.
        state_size: S; 0 without a core.
        device: The policy worker's device.
        is_shared: Whether the states at the end of a slot go through shared memory, for checkpoints and resumed runs.
    """

    def __init__(
        self, store: SlotStore, groups: Sequence[int], *, state_size: int, device: torch.device, is_shared: bool
    ) -> None:
        topology = store.topology
        self._store = store
        self._device = device
        self._rows = topology.group_rows
        self._is_shared = is_shared
        self._place_of_group = np.full(topology.num_groups, -1, np.int64)
        self._place_of_group[list(groups)] = np.arange(len(groups))
        self._state: Tensor | None = None
        if state_size:
            # In the dtype of the slots.
            dtype = torch.from_numpy(store.arrays[RNN_STATE][:0]).dtype
            self._state = torch.zeros(len(groups), self._rows, state_size, dtype=dtype, device=device)

    def take(self, requests: Requests) -> Tensor | None:
        """Return the states ``[m, S]`` before x_t, and write all of the groups' into slots that store them."""
        if self._state is None:
            return None
        groups, slots, steps = requests.groups, requests.slots, requests.steps
        places = self._place_of_group[groups]
        if self._is_shared and steps[0] == 0:
            assert self._store.group_rnn_state is not None
            self._state[places] = torch.from_numpy(self._store.group_rnn_state[groups]).to(self._device)
        state = self._state[places]
        if isinstance(self._store, ReplayStore):
            if (steps % self._store.stride == 0).any():
                self._store.keep_rnn_state(slots, steps, state.cpu().numpy())
        elif (begins := steps == 0).any():
            self._store.arrays[RNN_STATE][slots[begins]] = state[torch.from_numpy(begins)].cpu().numpy()
        own: Tensor = requests.of_all(state.view(len(groups) * self._rows, -1))
        return own

    def keep(self, requests: Requests, state: Tensor | None) -> None:
        """Store the states ``[m, S]`` after x_t for the rows' next steps; a policy may have a smaller S, or none."""
        if self._state is None or state is None:
            return
        places, state = self._place_of_group[requests.groups], state.to(self._state.dtype)
        size = state.shape[-1]
        if requests.rows is None:
            self._state[places, :, :size] = state.view(len(places), self._rows, -1)
        else:
            place, row = np.divmod(requests.rows, self._rows)
            self._state[places[place], row, :size] = state

    def share(self, groups: NDArray[np.int64]) -> None:
        """Copy the states before x_T into shared memory."""
        if self._state is not None:
            assert self._store.group_rnn_state is not None
            self._store.group_rnn_state[groups] = self._state[self._place_of_group[groups]].cpu().numpy()

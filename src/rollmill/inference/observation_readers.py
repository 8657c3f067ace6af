"""Reading of x_t by a policy worker: in place, gathered from slots, or from a replay's frame stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rollmill.inference.requests import Requests
from rollmill.native import gather
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import SlotStore


class ObservationReader(Protocol):
    """Reads observations of groups."""

    def read(self, requests: Requests) -> Mapping[str, Tensor]:
        """Read x_t of every row that acts, name -> ``[m, ...]`` on the device; valid until the next call."""
        ...


class SlotReader:
    """Reads from slots. See :class:`ObservationReader`.

    Args:
        store: The slots.
        max_groups: Maximum number of groups in a batch.
        device: The policy worker's device.
        may_view: Whether rows that lie side by side in a single group may be read in place on a CPU. Lockstep always
            copies, because results may depend on alignment, and the alignment of a slot's rows depends on their size.
    """

    def __init__(self, store: SlotStore, *, max_groups: int, device: torch.device, may_view: bool) -> None:
        self._device = device
        self._steps = store.topology.rollout_length + 1
        self._may_view = may_view and device.type == "cpu"
        # Observation blocks [num_slots * (T + 1), B, ...]: a group's x_t is one row of this view, contiguous.
        self._blocks = {name: a.reshape(-1, *a.shape[2:]) for name, a in store.observation.items()}
        self._group_rows = store.topology.group_rows
        # Page-locked for direct copies by a GPU.
        self._staging = {
            name: torch.empty(
                (max_groups, *block.shape[1:]),
                dtype=torch.from_numpy(block[:0]).dtype,
                pin_memory=device.type == "cuda",
            ).numpy()
            for name, block in self._blocks.items()
        }

    def read(self, requests: Requests) -> Mapping[str, Tensor]:
        """See :class:`ObservationReader`."""
        slots, steps = requests.slots, requests.steps
        if self._may_view and len(slots) == 1 and (side_by_side := requests.side_by_side) is not None:
            place = slots[0] * self._steps + steps[0]
            return {name: torch.from_numpy(blocks[place, side_by_side]) for name, blocks in self._blocks.items()}
        if requests.rows is not None:
            return self._read_rows(requests)
        index = slots * self._steps + steps
        result = {}
        for name, blocks in self._blocks.items():
            block = self._staging[name][: len(index)]
            gather(block, blocks, index)
            rows = torch.from_numpy(block.reshape(-1, *blocks.shape[2:]))
            result[name] = rows.to(self._device, non_blocking=True)
        return result

    def _read_rows(self, requests: Requests) -> Mapping[str, Tensor]:
        assert requests.rows is not None
        blocks = requests.per_row(requests.slots * self._steps + requests.steps)
        index = blocks * self._group_rows + requests.rows % self._group_rows
        result = {}
        for name, source in self._blocks.items():
            rows = self._staging[name].reshape(-1, *source.shape[2:])[: len(index)]
            gather(rows, source.reshape(-1, *source.shape[2:]), index)
            result[name] = torch.from_numpy(rows).to(self._device, non_blocking=True)
        return result


class ShownReader:
    """Reads whole stacks of frames, of which a replay's slots store the newest frame. See :class:`ObservationReader`.

    Args:
        store: The replay.
        device: The policy worker's device.
    """

    def __init__(self, store: ReplayStore, *, device: torch.device) -> None:
        self._store = store
        self._device = device

    def read(self, requests: Requests) -> Mapping[str, Tensor]:
        """See :class:`ObservationReader`."""
        shown = self._store.shown_to(requests.groups, requests.slots, requests.steps)
        return {
            name: torch.from_numpy(requests.of_all(array.reshape(-1, *array.shape[2:]))).to(
                self._device, non_blocking=True
            )
            for name, array in shown.items()
        }

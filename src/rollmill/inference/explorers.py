"""Exploration context that a policy worker passes to an algorithm: rows, steps and randomness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.base import Action, Explore
from rollmill.envs.random_actions import random_actions
from rollmill.inference.requests import Requests
from rollmill.runtime.row_noise import RowNoise
from rollmill.specs import ActionSpec
from rollmill.storage.slots import SlotStore, Topology


class Explorer(Protocol):
    """Builds the :class:`rollmill.algorithms.base.Explore` of a batch."""

    def explore(self, requests: Requests, reset: Tensor, mask: NDArray[np.bool_] | None) -> Explore:
        """Build the context of a batch.

        Args:
            requests: The m rows.
            reset: bool ``[m]``, on the device.
            mask: bool ``[m, mask_size]``, or None.
        """
        ...


class _NumbersOfRows:
    """A number for each row of all groups."""

    def __init__(self, numbers: Tensor, topology: Topology, device: torch.device) -> None:
        # A list, because indexing a tensor takes longer than concatenating a few.
        self._of_group: list[Tensor] = list(numbers.to(device).view(topology.num_groups, -1).unbind())

    def __call__(self, requests: Requests) -> Tensor:
        """Return the numbers of the rows that act, ``[m]``."""
        groups = requests.groups
        if len(groups) == 1:
            rows = self._of_group[int(groups[0])]
        else:
            rows = torch.cat([self._of_group[group] for group in groups.tolist()])
        own: Tensor = requests.of_all(rows)
        return own


class _RowsOfGroups(_NumbersOfRows):
    """Indices of groups' rows in the whole run, int64; row 0 of group 0 is ``first_row``."""

    def __init__(self, topology: Topology, first_row: int, device: torch.device) -> None:
        self.count = topology.num_groups * topology.group_rows
        super().__init__(first_row + torch.arange(self.count), topology, device)


class GeneratorExplorer:
    """Noise from the worker's own generator. See :class:`Explorer`.

    Args:
        topology: The run's topology.
        device: The policy worker's device.
        seed: Keys this worker's noise.
        first_row: Index of this rank's first row among all of the run's.
        agent_steps: Counts this rank's agent steps; on-policy sampling does not use them.
        total_steps: Agent steps of the run, for schedules.
        world_size: Number of ranks, which are assumed to step equally fast.
        rungs: float32, places of this rank's rows on a ladder of epsilons, where they are not the rows' indices.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        device: torch.device,
        seed: int,
        first_row: int = 0,
        agent_steps: Callable[[], int] = lambda: 0,
        total_steps: int = 0,
        world_size: int = 1,
        rungs: NDArray[np.float32] | None = None,
    ) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._rows = _RowsOfGroups(topology, first_row, device)
        self._agent_steps = agent_steps
        self._total_steps = total_steps
        self._world_size = world_size
        self._num_rows = self._rows.count * world_size
        self._rungs = None if rungs is None else _NumbersOfRows(torch.from_numpy(rungs), topology, device)

    def explore(self, requests: Requests, reset: Tensor, mask: NDArray[np.bool_] | None) -> Explore:
        """See :class:`Explorer`."""
        agent_steps = self._agent_steps() * self._world_size
        return Explore(
            agent_steps,
            self._total_steps,
            self._rows(requests),
            self._num_rows,
            reset,
            self._generator,
            rungs=None if self._rungs is None else self._rungs(requests),
        )


@dataclass(frozen=True, kw_only=True)
class RandomExplorer:
    """Uniformly random actions, which the algorithm only evaluates, for benchmarks. See :class:`Explorer`.

    Attributes:
        explorer: The explorer for the other fields.
        action: The action spec.
        device: The policy worker's device.
        random: Draws the actions.
    """

    explorer: Explorer
    action: ActionSpec
    device: torch.device
    random: np.random.Generator

    def explore(self, requests: Requests, reset: Tensor, mask: NDArray[np.bool_] | None) -> Explore:
        """See :class:`Explorer`."""
        drawn = random_actions(self.action, mask, len(reset), self.random)
        given = Action(*(None if a is None else torch.from_numpy(a).to(self.device) for a in drawn))
        return self.explorer.explore(requests, reset, mask)._replace(given=given)


class KeyedExplorer:
    """Noise keyed by (seed, row, step), independent of worker and timing. See :class:`Explorer`.

    Args:
        store: The slots, for the groups' iterations.
        width: Random numbers per row.
        device: The policy worker's device.
        seed: The run's seed.
        first_row: Index of this machine's first row among all of the run's.
    """

    def __init__(self, store: SlotStore, *, width: int, device: torch.device, seed: int, first_row: int) -> None:
        self._store = store
        self._device = device
        self._noise = RowNoise(seed, "actions", width=width)
        self._generator = torch.Generator(device)
        self._rows = _RowsOfGroups(store.topology, first_row, torch.device("cpu"))

    def explore(self, requests: Requests, reset: Tensor, mask: NDArray[np.bool_] | None) -> Explore:
        """See :class:`Explorer`."""
        topology = self._store.topology
        step = self._store.group_iteration[requests.groups] * topology.rollout_length + requests.steps
        rows = self._rows(requests)
        uniform = self._noise.uniform(rows.numpy(), requests.per_row(step))
        return Explore(
            agent_steps=0,
            total_steps=0,
            rows=rows.to(self._device),
            num_rows=self._rows.count,
            reset=reset,
            generator=self._generator,
            uniform=torch.from_numpy(uniform).to(self._device),
        )

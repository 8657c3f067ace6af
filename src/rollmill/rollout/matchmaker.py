"""Who plays whom: at the start of a match each agent is given the policy that plays it until the match ends.

Draws depend on nothing but the seed, the environment, the step and the published table, so that workers may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.row_noise import RowNoise
from rollmill.storage.bank import LIVE, BankTable, SnapshotBank
from rollmill.storage.slots import POLICY_ID, SlotStore

if TYPE_CHECKING:
    from rollmill.envs.views import AgentRows


class Matchmaker:
    """Writes the policies of a rollout worker's groups into their slots.

    Args:
        store: The slots.
        bank: The past selves.
        table_of: Returns the table to draw from, given the iteration of a group.
        first_version: The table that must be published before the first draw; -1 for none.
        past: Share of the matches with a past self.
        seed: Keys the draws.
        first_env: Index of this rank's first environment among those of all ranks.
        counts_users: Whether to count the matches with each past self, so that its place is not overwritten; in
            lockstep the learner knows them from the batches.
    """

    def __init__(
        self,
        store: SlotStore,
        bank: SnapshotBank,
        *,
        table_of: Callable[[int], BankTable],
        first_version: int = -1,
        past: float,
        seed: int,
        first_env: int,
        counts_users: bool,
    ) -> None:
        topology = store.topology
        self._bank = bank
        self._table_of = table_of
        self._first_version = first_version
        self._past = past
        self._noise = RowNoise(seed, "matches", width=2)
        self._agents = topology.agents_per_env
        self._envs_per_group = topology.group_rows // topology.agents_per_env
        self._steps = topology.rollout_length
        self._first_env = first_env
        self._counts_users = counts_users
        self._policies = store.arrays[POLICY_ID]
        # Group -> who plays, int16 [envs, agents], and the episodes of its environments when that was drawn.
        self._playing: dict[int, tuple[NDArray[np.int16], NDArray[np.int64]]] = {}

    def is_ready(self, timeout_s: float) -> bool:
        """Wait for the first table; False after the timeout."""
        return self._bank.wait_for(self._first_version, timeout_s=timeout_s)

    def forget(self, group: HostedGroup) -> None:
        """End the matches of a group whose environments are replaced."""
        playing = self._playing.pop(group.index, None)
        if playing is not None:
            self._end(playing[0])

    def resume(self, group: HostedGroup) -> None:
        """Take over who plays from x_0 of a restored group's slot."""
        ids = self._policies[group.slot, 0].reshape(-1, self._agents).copy()
        self._playing[group.index] = ids, self._episodes(group).copy()

    def write(self, group: HostedGroup, step: int) -> None:
        """Write who plays at x_t, t = ``step``; draws opponents for the matches that begin there."""
        episodes = self._episodes(group)
        if group.index not in self._playing:
            ids = np.full((self._envs_per_group, self._agents), LIVE, np.int16)
            begun = np.ones(self._envs_per_group, bool)
        else:
            ids, before = self._playing[group.index]
            begun = episodes != before
        if begun.any():
            self._end(ids[begun])
            ids[begun] = self._draw(group, step, np.flatnonzero(begun), episodes)
            self._playing[group.index] = ids, episodes.copy()
        self._policies[group.slot, step] = ids.reshape(-1)

    def _draw(
        self, group: HostedGroup, step: int, envs: NDArray[np.int64], episodes: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        ids = np.full((len(envs), self._agents), LIVE, np.int16)
        table = self._table_of(group.iteration)
        if not table.probability.any():
            return ids
        rows = self._first_env + group.index * self._envs_per_group + envs
        uniform = self._noise.uniform(rows, np.full(len(envs), group.iteration * self._steps + step))
        bounds = np.cumsum(table.probability)
        for index in np.flatnonzero(uniform[:, 0] < self._past).tolist():
            place = int(np.searchsorted(bounds, uniform[index, 1] * bounds[-1], side="right"))
            place = min(place, self._bank.places - 1)
            if self._counts_users and not self._bank.begin(place, int(table.generation[place])):
                continue
            # Each agent in turn, so that seats are balanced.
            seat = int(rows[index] + episodes[envs[index]]) % self._agents
            ids[index, seat] = 1 + place
        return ids

    def _end(self, ids: NDArray[np.int16]) -> None:
        if self._counts_users:
            for policy in ids[ids != LIVE].tolist():
                self._bank.end(policy - 1)

    def _episodes(self, group: HostedGroup) -> NDArray[np.int64]:
        return cast("AgentRows", group.environments).episodes

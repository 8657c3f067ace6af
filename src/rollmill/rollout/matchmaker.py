"""Who plays whom: at the start of an episode each agent is given a player, which plays it until the episode ends.

Draws that lockstep uses depend on nothing but the seed, the environment, the step and the published tables, so that
workers may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import AgentRows
from rollmill.rollout.assignment import Assignment
from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.row_noise import RowNoise
from rollmill.storage.bank import BankTable, SnapshotBank
from rollmill.storage.matches import follow_matches
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slots import MATCH_RETURN, POLICY_ID, SlotStore

SLOTS_OF_A_DRAW = 4
"""Slots of a group whose matches with past selves share a draw."""


class PastOpponents:
    """Puts past selves in the place of policies.

    Args:
        banks: The past selves of each policy.
        players: Ids of all players.
        table_of: Returns the table of a bank to draw from, given the iteration of a group.
        first_version: The tables that must be published before the first draw; -1 for none.
        share: Share of the matches with a past self.
        seed: Keys the draws.
        counts_users: Whether to count the matches with each past self, so that its place is not overwritten; in
            lockstep the learner knows them from the batches.
    """

    def __init__(
        self,
        banks: Sequence[SnapshotBank],
        players: PlayerIds,
        *,
        table_of: Callable[[SnapshotBank, int], BankTable],
        first_version: int = -1,
        share: float,
        seed: int,
        counts_users: bool,
    ) -> None:
        self._banks = banks
        self._players = players
        self._table_of = table_of
        self._first_version = first_version
        self._share = share
        self._noise = RowNoise(seed, "matches", width=1)
        self._noise_of_group = RowNoise(seed, "past selves", width=len(banks))
        self._counts_users = counts_users

    def is_ready(self, timeout_s: float) -> bool:
        """Wait for the first tables; False after the timeout."""
        return all(bank.wait_for(self._first_version, timeout_s=timeout_s) for bank in self._banks)

    def replace(
        self,
        ids: NDArray[np.int16],
        envs: NDArray[np.int64],
        episodes: NDArray[np.int64],
        *,
        group: int,
        iteration: int,
        step: int,
    ) -> None:
        """Replace the policy of one agent in some of the matches that begin, by a past self of that policy.

        Args:
            ids: int16 ``[n, agents]``, who plays; changed in place.
            envs: int64 ``[n]``, indices of the environments among those of the whole run.
            episodes: int64 ``[n]``, episodes that these have begun.
            group: Index of their group among those of the whole run.
            iteration: Slots that the group has filled.
            step: Steps that it has made, all slots counted.
        """
        tables = [self._table_of(bank, iteration) for bank in self._banks]
        if not any(table.probability.any() for table in tables):
            return
        uniform = self._noise.uniform(envs, np.full(len(envs), step))[:, 0]
        # Matches share a draw, because past selves play few rows at a time, and a forward pass for each of many of them
        # costs as much as one for a whole group (docs/journal/2026-11.md).
        period = np.array([iteration // SLOTS_OF_A_DRAW])
        which = self._noise_of_group.uniform(np.array([group]), period)[0].tolist()
        for index in np.flatnonzero(uniform < self._share).tolist():
            seats = np.flatnonzero(ids[index] < len(self._banks))  # without those of guests, which do not learn
            if len(seats) < 2:
                continue
            # Each agent in turn, so that seats are balanced.
            seat = int(seats[int(envs[index] + episodes[index]) % len(seats)])
            policy = int(ids[index, seat])
            bank, table = self._banks[policy], tables[policy]
            bounds = np.cumsum(table.probability)
            if not bounds[-1]:
                continue
            place = int(np.searchsorted(bounds, which[policy] * bounds[-1], side="right"))
            place = min(place, bank.places - 1)
            if not self._counts_users or bank.begin(place, int(table.generation[place])):
                ids[index, seat] = self._players.past(policy, place)

    def end(self, ids: NDArray[np.int16]) -> None:
        """End matches of these players."""
        if self._counts_users:
            for player in filter(self._players.is_past, ids.ravel().tolist()):
                policy, place = self._players.place(player)
                self._banks[policy].end(place)


class Guests:
    """Puts guests in the place of policies.

    Args:
        guests: Ids of the guests that may play any agent.
        players: Ids of all players.
        share: Share of the matches with a guest, among those without a past self.
        seed: Keys the draws.
    """

    def __init__(self, guests: Sequence[int], players: PlayerIds, *, share: float, seed: int) -> None:
        self._guests = guests
        self._players = players
        self._share = share
        self._noise = RowNoise(seed, "guests", width=2)

    def replace(self, ids: NDArray[np.int16], envs: NDArray[np.int64], episodes: NDArray[np.int64], step: int) -> None:
        """Replace the policy of one agent in some of the matches that begin; arguments as in :class:`PastOpponents`."""
        uniform = self._noise.uniform(envs, np.full(len(envs), step))
        for index in np.flatnonzero(uniform[:, 0] < self._share).tolist():
            seats = np.flatnonzero(ids[index] < self._players.policies)
            # A match with a past self is counted already, and one policy has to learn.
            if len(seats) > 1 and not any(map(self._players.is_past, ids[index].tolist())):
                seat = int(seats[int(envs[index] + episodes[index]) % len(seats)])
                ids[index, seat] = self._guests[int(uniform[index, 1] * len(self._guests))]


class Matchmaker:
    """Writes who plays the rows of a rollout worker's groups, and how matches ended, into their slots.

    Args:
        store: The slots.
        assignment: Gives each agent a policy.
        past_selves: Puts past selves in their place; None without banks.
        guests: Puts guests in their place; None without guests.
        first_env: Index of this rank's first environment among those of all ranks.
    """

    def __init__(
        self,
        store: SlotStore,
        *,
        assignment: Assignment,
        past_selves: PastOpponents | None,
        guests: Guests | None = None,
        first_env: int,
    ) -> None:
        topology = store.topology
        self._assignment = assignment
        self._past_selves = past_selves
        self._guests = guests
        self._agents = topology.agents_per_env
        self._envs_per_group = topology.group_rows // topology.agents_per_env
        self._rollout_length = topology.rollout_length
        self._first_env = first_env
        self._policies = store.arrays[POLICY_ID]
        self._match_returns = store.arrays.get(MATCH_RETURN)
        self._reset = store.arrays["reset"]
        # Group -> who plays, int16 [envs, agents], and the episodes of its environments when that was drawn.
        self._playing: dict[int, tuple[NDArray[np.int16], NDArray[np.int64]]] = {}

    def is_ready(self, timeout_s: float) -> bool:
        """Wait for what the first draw needs; False after the timeout."""
        return self._past_selves is None or self._past_selves.is_ready(timeout_s)

    def forget(self, group: HostedGroup) -> None:
        """End the matches of a group whose environments are replaced."""
        playing = self._playing.pop(group.index, None)
        if playing is not None:
            self._end(playing[0])

    def resume(self, group: HostedGroup, episodes: NDArray[np.int64] | None) -> None:
        """Take over who plays from x_0 of a restored group's slot.

        Args:
            group: The group.
            episodes: What :meth:`episodes` returned when it was saved; None in files of earlier versions.
        """
        ids = self._policies[group.slot, 0].reshape(-1, self._agents).copy()
        self._playing[group.index] = ids, (self._episodes(group, 0) if episodes is None else episodes).copy()

    def episodes(self, group: HostedGroup) -> NDArray[np.int64]:
        """Return how many episodes each environment has begun, at its newest observation, int64 ``[envs]``."""
        return self._playing[group.index][1].copy()

    def write(self, group: HostedGroup, step: int, episode_return: NDArray[Any] | None = None) -> None:
        """Write who plays at x_t, t = ``step``; draws players for the episodes that begin there.

        Args:
            group: The group.
            step: t.
            episode_return: float32 ``[B]``, returns of the episodes that ended with the step to x_t, NaN elsewhere;
                None where x_t is the first observation of new environments.
        """
        episodes = self._episodes(group, step)
        if group.index not in self._playing:
            ids = np.empty((self._envs_per_group, self._agents), np.int16)
            begun = np.ones(self._envs_per_group, bool)
            if self._match_returns is not None:
                self._match_returns[group.slot, step] = np.nan
        else:
            ids, before = self._playing[group.index]
            begun = episodes != before
            if self._match_returns is not None and episode_return is not None:
                self._follow_matches(self._match_returns[group.slot], group, step, episode_return, begun)
            if begun.any():
                self._end(ids[begun])
        if begun.any():
            ids[begun] = self._draw(group, step, np.flatnonzero(begun), episodes)
            self._playing[group.index] = ids, episodes.copy()
        self._policies[group.slot, step] = ids.reshape(-1)

    def _follow_matches(
        self,
        returns: NDArray[np.float32],
        group: HostedGroup,
        step: int,
        episode_return: NDArray[Any],
        begun: NDArray[np.bool_],
    ) -> None:
        """Write the returns of agents whose episodes have ended, also before those of others in their environment."""
        before, ended, into = (
            array.reshape(-1, self._agents) for array in (returns[step - 1], episode_return, returns[step])
        )
        is_over = begun | cast("AgentRows", group.environments).resets_next
        follow_matches(before, ended, is_over, into)

    def _draw(
        self, group: HostedGroup, step: int, envs: NDArray[np.int64], episodes: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        of_run = self._first_env + group.index * self._envs_per_group + envs
        steps = group.iteration * self._rollout_length + step
        of_all = self._first_env // self._envs_per_group + group.index
        ids = self._assignment.assign(of_run, episodes[envs], group=of_all, iteration=group.iteration, step=steps)
        if self._past_selves is not None:
            self._past_selves.replace(ids, of_run, episodes[envs], group=of_all, iteration=group.iteration, step=steps)
        if self._guests is not None:
            self._guests.replace(ids, of_run, episodes[envs], steps)
        return ids

    def _end(self, ids: NDArray[np.int16]) -> None:
        if self._past_selves is not None:
            self._past_selves.end(ids)

    def _episodes(self, group: HostedGroup, step: int) -> NDArray[np.int64]:
        """Return how many episodes each environment has begun, int64 ``[envs]``."""
        begun: NDArray[np.int64] | None = getattr(group.environments, "episodes", None)
        if begun is not None:
            return begun
        if group.index not in self._playing:
            # An environment that made random steps first is within an episode and does not reset here.
            return np.ones(self._envs_per_group, np.int64)
        # Environments with one agent: a row that resets has begun one more.
        begun = self._playing[group.index][1] + self._reset[group.slot, step]
        return begun  # noqa: RET504  # its type is declared

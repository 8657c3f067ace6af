"""The league of a policy and its past selves: results, ratings, snapshots, and who is to be met next."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.learning.matches import Match
from rollmill.learning.trajectories import Trajectories
from rollmill.storage.bank import LIVE, BankTable, SnapshotBank
from rollmill.storage.bank_config import BankConfig

_ELO_STEP = 8.0
_ELO_SCALE = 400.0
# A result counts half after this many further matches with the same past self, because the policy improves.
_HALF_LIFE = 200.0
_PRIOR_MATCHES = 4.0


class Snapshot(NamedTuple):
    """A past self.

    Attributes:
        generation: Its number, from 1.
        agent_steps: Agent steps of training before it.
        rating: Elo, that of the policy when it was taken.
        matches: Matches against it, older ones counting less.
        points: Points of the policy in them: 1 for a win, 1/2 for a draw.
        weights: uint8, as published.
    """

    generation: int
    agent_steps: int
    rating: float
    matches: float
    points: float
    weights: NDArray[np.uint8]

    @property
    def win_rate(self) -> float:
        """The policy's share of the points, with a few drawn matches before the first."""
        return (self.points + _PRIOR_MATCHES / 2) / (self.matches + _PRIOR_MATCHES)


class Places(Protocol):
    """Knows which places of the bank are in no match."""

    def close(self, place: int, version: int) -> None:
        """Note that a place is met no longer, from this version of the weights on."""
        ...

    def observe(self, batch: Trajectories, version: int) -> None:
        """Take in a batch, which was learned from to make this version."""
        ...

    def is_unused(self, place: int) -> bool:
        """Whether a closed place may be overwritten."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint of a run that resumes exactly."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        ...


class CountedPlaces:
    """Rollout workers count who is played (async). See :class:`Places`."""

    def __init__(self, bank: SnapshotBank) -> None:
        self._bank = bank

    def close(self, place: int, version: int) -> None:
        """Do nothing."""

    def observe(self, batch: Trajectories, version: int) -> None:
        """Do nothing."""

    def is_unused(self, place: int) -> bool:
        """Ask the bank."""
        return self._bank.is_unused(place)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: matches of a resumed run start again."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class ObservedPlaces:
    """Batches tell who is played, so that it does not depend on timing (lockstep). See :class:`Places`.

    Args:
        lag: Iterations that groups may be ahead of the version that they draw opponents with.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._closed_at: dict[int, int] = {}
        self._version = 0
        self._in_use: frozenset[int] = frozenset()

    def close(self, place: int, version: int) -> None:
        """Iterations from ``version`` + lag on draw it no longer."""
        self._closed_at[place] = version

    def observe(self, batch: Trajectories, version: int) -> None:
        """Note who plays at the end of an iteration."""
        assert batch.last_policies is not None, "slots say who plays"
        self._version = version
        self._in_use = frozenset((batch.last_policies - 1).tolist())

    def is_unused(self, place: int) -> bool:
        """Whether no group can have drawn it since it was closed, and no match with it is under way."""
        closed_at = self._closed_at.get(place)
        drawn_no_more = closed_at is None or self._version > closed_at + self._lag
        return drawn_no_more and place not in self._in_use

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Places`."""
        closed_at = [[place, version] for place, version in self._closed_at.items()]
        return {"closed_at": closed_at, "version": self._version, "in_use": sorted(self._in_use)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`Places`."""
        self._closed_at = {int(place): int(version) for place, version in state["closed_at"]}
        self._version, self._in_use = int(state["version"]), frozenset(map(int, state["in_use"]))


class League:
    """Takes snapshots, rates, and publishes who may be met. Not thread-safe.

    Args:
        bank: The shared memory.
        places: Knows which places are in no match.
        config: Its settings.
        num_versions: Tables that may be asked for at once.
    """

    def __init__(self, bank: SnapshotBank, places: Places, config: BankConfig, *, num_versions: int = 1) -> None:
        self._tables: deque[tuple[int, BankTable]] = deque(maxlen=num_versions)
        self._bank = bank
        self._places = places
        self._config = config
        self._members: list[Snapshot | None] = [None] * bank.places
        self._is_closed = [False] * bank.places
        self._taken_at = 0
        self._generation = 0
        self.rating = 0.0
        self._recent = (0.0, 0.0)

    def observe(self, batch: Trajectories, version: int) -> None:
        """Take in the results of a batch, before the version that is learned from it."""
        self._places.observe(batch, version)
        for match in batch.matches:
            self._count(match)

    def take_snapshot_if_due(self, agent_steps: int, version: int, weights: NDArray[np.uint8]) -> None:
        """Put the current weights into the bank if it is time and there is a place that nobody plays."""
        if agent_steps - self._taken_at < self._config.snapshot_every:
            return
        free = [place for place in range(self._bank.places) if self._is_free(place)]
        if not free:
            return
        place = free[0]
        self._taken_at = agent_steps - agent_steps % self._config.snapshot_every
        self._generation += 1
        self._members[place] = Snapshot(self._generation, agent_steps, self.rating, 0.0, 0.0, weights.copy())
        self._is_closed[place] = False
        self._bank.write(place, self._generation, weights)
        self._close_one(version)

    def publish(self, version: int) -> None:
        """Publish who may be met by groups that act with this version."""
        table = self._table()
        self._bank.publish(version, table)
        if self._tables and self._tables[-1][0] == version:
            self._tables.pop()
        self._tables.append((version, table))

    def figures(self, *, is_row: bool) -> dict[str, float | None]:
        """Numbers for metrics: the rating, snapshots taken, and the share of points against past selves lately.

        Args:
            is_row: Whether they are for a row, so that the next ones count from here.
        """
        points, matches = self._recent
        if is_row:
            self._recent = (0.0, 0.0)
        return {
            "rating": self.rating,
            "snapshots": float(self._generation),
            "past_win_rate": points / matches if matches else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {
            "rating": self.rating,
            "generation": self._generation,
            "taken_at": self._taken_at,
            "closed": list(self._is_closed),
            "places": self._places.state_dict(),
            "tables": [
                [version, table.generation.tolist(), table.probability.tolist()] for version, table in self._tables
            ],
            "members": [
                None if member is None else {**member._asdict(), "weights": torch.from_numpy(member.weights)}
                for member in self._members
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`.

        Raises:
            ValueError: It belongs to a bank of another size or to another network.
        """
        if len(state["members"]) != self._bank.places:
            raise ValueError(
                f"it has a bank of {len(state['members'])} past selves, but population.snapshots={self._bank.places}"
            )
        self.rating, self._generation = float(state["rating"]), int(state["generation"])
        self._taken_at, self._is_closed = int(state["taken_at"]), list(state["closed"])
        for place, saved in enumerate(state["members"]):
            if saved is not None:
                member = Snapshot(**{**saved, "weights": saved["weights"].numpy()})
                self._members[place] = member
                self._bank.write(place, member.generation, member.weights)
        self._places.load_state_dict(state["places"])
        # Groups in flight ask for these; the present one is published next.
        for version, generation, probability in state["tables"][:-1]:
            table = BankTable(np.array(generation, np.int64), np.array(probability, np.float64))
            self._tables.append((version, table))
            self._bank.publish(version, table)

    def _is_free(self, place: int) -> bool:
        if self._members[place] is None:
            return True
        return self._is_closed[place] and self._places.is_unused(place)

    def _close_one(self, version: int) -> None:
        """Close a past self where no place is empty, so that it is free when the next snapshot is due."""
        present = [(member.generation, place) for place, member in enumerate(self._members) if member is not None]
        if len(present) < self._bank.places or any(self._is_closed):
            return
        _, place = least_needed(present) if self._config.keep == "spread" else min(present)
        self._is_closed[place] = True
        self._places.close(place, version)

    def _table(self) -> BankTable:
        table = BankTable.empty(self._bank.places)
        for place, member in enumerate(self._members):
            if member is not None and not self._is_closed[place]:
                table.generation[place] = member.generation
                table.probability[place] = self._weight(member)
        if total := table.probability.sum():
            table.probability[:] /= total
        return table

    def _weight(self, member: Snapshot) -> float:
        if self._config.matchmaking == "latest":
            open_ones = [one for one, closed in zip(self._members, self._is_closed, strict=True) if one and not closed]
            return float(member.generation == max(one.generation for one in open_ones))
        if self._config.matchmaking == "pfsp":
            return max(1e-3, (1.0 - member.win_rate) ** 2)
        return 1.0

    def _count(self, match: Match) -> None:
        """Count a match between the policy and a past self."""
        place = match.policy - 1
        member = self._members[place] if match.policy != LIVE else None
        if member is None:
            return
        decay = 0.5 ** (1.0 / _HALF_LIFE)
        expected = 1.0 / (1.0 + 10.0 ** ((member.rating - self.rating) / _ELO_SCALE))
        self.rating += _ELO_STEP * (match.points - expected)
        self._members[place] = member._replace(
            matches=member.matches * decay + 1.0, points=member.points * decay + match.points
        )
        self._recent = self._recent[0] + match.points, self._recent[1] + 1.0


def least_needed(members: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Choose the one of (generation, place) whose neighbours in time are nearest to each other; the oldest of several.

    So those that remain are spread over the whole history. The first and the last one stay.
    """
    ordered = sorted(members)
    if len(ordered) < 3:
        return ordered[0]
    gaps = [after[0] - before[0] for before, after in zip(ordered, ordered[2:], strict=False)]
    return ordered[1 + gaps.index(min(gaps))]

"""A policy's past selves: when one is taken, which stay in the bank, and which may be met."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.learning.matchmaking import MATCHMAKING, Learning, PastSelf, probabilities
from rollmill.learning.ratings import Rating, RatingSystem, restored
from rollmill.learning.trajectories import Trajectories
from rollmill.storage.bank import BankTable, SnapshotBank
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.population_config import PopulationConfig

# A result counts half after this many further matches with the same opponent, because the policy improves.
_HALF_LIFE = 200.0
DECAY = 0.5 ** (1.0 / _HALF_LIFE)
_PRIOR_MATCHES = 4.0
# Matches that a win rate is taken from.
_FEWEST_MATCHES = 100


class Snapshot(NamedTuple):
    """A past self.

    Attributes:
        generation: Its number, from 1.
        agent_steps: Agent steps of training before it.
        rating: That of the policy when it was taken.
        matches: Matches against it, older ones counting less.
        points: Points of the policy in them: 1 for a win, 1/2 for a draw.
        weights: uint8, as published.
    """

    generation: int
    agent_steps: int
    rating: Rating
    matches: float
    points: float
    weights: NDArray[np.uint8]


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
        players: Ids of all players.
        policy: Whose places they are.
        lag: Iterations that groups may be ahead of the version that they draw opponents with.
    """

    def __init__(self, players: PlayerIds, policy: int, lag: int) -> None:
        self._players = players
        self._policy = policy
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
        past = [self._players.place(player) for player in batch.last_policies.tolist() if self._players.is_past(player)]
        self._in_use = frozenset(place for policy, place in past if policy == self._policy)

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


class SnapshotKeeper:
    """Takes a policy's snapshots, and publishes which of them may be met. Not thread-safe.

    Args:
        bank: The shared memory.
        places: Knows which places are in no match.
        config: The settings.
        system: How players are rated.
        name: Of the policy.
        num_versions: Tables that may be asked for at once.

    Attributes:
        generation: Snapshots taken so far.

    Raises:
        ConfigError: The matchmaking rule is not known.
    """

    def __init__(
        self,
        bank: SnapshotBank,
        places: Places,
        config: PopulationConfig,
        *,
        system: RatingSystem,
        name: str = "",
        num_versions: int = 1,
    ) -> None:
        self._system = system
        self._name = name
        self._rule = MATCHMAKING.find(config.matchmaking, "population.matchmaking")
        self._tables: deque[tuple[int, BankTable]] = deque(maxlen=num_versions)
        self._bank = bank
        self._places = places
        self._config = config
        self._members: list[Snapshot | None] = [None] * bank.places
        self._is_closed = [False] * bank.places
        self._taken_at = 0
        # The newest table of the checkpoint, until it is published.
        self._restored: tuple[int, BankTable] | None = None
        # Matches with past selves since the last snapshot, and points in them.
        self._since = (0.0, 0.0)
        self.generation = 0

    @property
    def generations(self) -> list[int | None]:
        """The generation in each place; None in an empty one."""
        return [None if member is None else member.generation for member in self._members]

    def member(self, place: int) -> Snapshot | None:
        """Return the snapshot in a place."""
        return self._members[place]

    def observe(self, batch: Trajectories, version: int) -> None:
        """Take in who plays in a batch, before the version that is learned from it."""
        self._places.observe(batch, version)

    def count(self, place: int, points: float) -> None:
        """Count a match of the policy against this past self, with its points."""
        member = self._members[place]
        if member is not None:
            self._members[place] = member._replace(
                matches=member.matches * DECAY + 1.0, points=member.points * DECAY + points
            )

    def count_points(self, points: float) -> None:
        """Count a match of the policy against any past self, its own or another policy's, for the next snapshot."""
        self._since = self._since[0] + 1.0, self._since[1] + points

    def forget_results(self) -> None:
        """Count from here: the weights that played these matches have been replaced."""
        self._since = (0.0, 0.0)
        self._members = [member and member._replace(matches=0.0, points=0.0) for member in self._members]

    def take_if_due(self, agent_steps: int, version: int, weights: NDArray[np.uint8], rating: Rating) -> None:
        """Put the current weights into the bank if a snapshot is due and a place is free."""
        if agent_steps - self._taken_at < self._config.snapshot_every or not self._wins_enough():
            return
        free = [place for place in range(self._bank.places) if self._is_free(place)]
        if not free:
            return
        place = free[0]
        self._taken_at = agent_steps - agent_steps % self._config.snapshot_every
        self.generation += 1
        self._since = (0.0, 0.0)
        self._members[place] = Snapshot(self.generation, agent_steps, rating, 0.0, 0.0, weights.copy())
        self._is_closed[place] = False
        self._bank.write(place, self.generation, weights)
        self._close_one(version)

    def publish(self, version: int, agent_steps: int, rating: Rating, others: Sequence[tuple[float, float]]) -> None:
        """Publish who may be met by groups that act with this version.

        Args:
            version: The version.
            agent_steps: Agent steps of training before it.
            rating: The policy's rating.
            others: For each place, the matches of other policies against its past self, and their points in them.
        """
        restored, self._restored = self._restored, None
        if restored is not None and restored[0] == version:
            # Results of others are restored as they were after this version, so the table would be another one.
            table = restored[1]
        else:
            table = self._table(agent_steps, rating, others)
        self._bank.publish(version, table)
        if self._tables and self._tables[-1][0] == version:
            self._tables.pop()
        self._tables.append((version, table))

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {
            "generation": self.generation,
            "taken_at": self._taken_at,
            "since": list(self._since),
            "closed": list(self._is_closed),
            "places": self._places.state_dict(),
            "tables": [
                [version, table.generation.tolist(), table.probability.tolist()] for version, table in self._tables
            ],
            "members": [
                None
                if member is None
                else {
                    **member._asdict(),
                    "rating": list(member.rating),
                    "weights": torch.from_numpy(member.weights),
                }
                for member in self._members
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], *, keeps_ratings: bool = True) -> None:
        """Restore the result of :meth:`state_dict`, with the ratings of past selves or without.

        Raises:
            ValueError: It belongs to a bank of another size or to another network.
        """
        if len(state["members"]) != self._bank.places:
            raise ValueError(
                f"it has a bank of {len(state['members'])} past selves, but population.snapshots={self._bank.places}"
            )
        self.generation = int(state["generation"])
        self._taken_at, self._is_closed = int(state["taken_at"]), list(state["closed"])
        matches, points = state.get("since", (0.0, 0.0))
        self._since = float(matches), float(points)
        # An attempt with a later checkpoint may have been made and refused.
        self._members = [None] * self._bank.places
        self._tables.clear()
        for place, saved in enumerate(state["members"]):
            if saved is not None:
                rating = restored(saved["rating"]) if keeps_ratings else self._system.initial
                member = Snapshot(**{**saved, "rating": rating, "weights": saved["weights"].numpy()})
                self._members[place] = member
                self._bank.write(place, member.generation, member.weights)
        self._places.load_state_dict(state["places"])
        tables = [
            (int(version), BankTable(np.array(generation, np.int64), np.array(probability, np.float64)))
            for version, generation, probability in state["tables"]
        ]
        # Groups in flight ask for these; the present one is published next.
        for version, table in tables[:-1]:
            self._tables.append((version, table))
            self._bank.publish(version, table)
        self._restored = tables[-1] if tables else None

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

    def _wins_enough(self) -> bool:
        """Whether the policy beats its past selves as often as a snapshot asks."""
        wanted = self._config.snapshot_win_rate
        if wanted is None or not any(self._members):
            return True
        matches, points = self._since
        return matches >= _FEWEST_MATCHES and points >= wanted * matches

    def _table(self, agent_steps: int, rating: Rating, others: Sequence[tuple[float, float]]) -> BankTable:
        table = BankTable.empty(self._bank.places)
        open_ones = [
            (place, member)
            for place, member in enumerate(self._members)
            if member is not None and not self._is_closed[place]
        ]
        if not open_ones:
            return table
        places = [place for place, _ in open_ones]
        past = [self._seen(member, rating, others[place]) for place, member in open_ones]
        policy = Learning(self._name, agent_steps, self._system.shown(rating))
        table.generation[places] = [member.generation for member in past]
        table.probability[places] = probabilities(self._config.matchmaking, self._rule, past, policy)
        return table

    def _seen(self, member: Snapshot, rating: Rating, others: tuple[float, float]) -> PastSelf:
        matches, points = member.matches + others[0], member.points + others[1]
        return PastSelf(
            generation=member.generation,
            agent_steps=member.agent_steps,
            rating=self._system.shown(member.rating),
            matches=matches,
            win_rate=(points + _PRIOR_MATCHES / 2) / (matches + _PRIOR_MATCHES),
            expected=self._system.expected(rating, member.rating),
        )


def least_needed(members: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Choose the one of (generation, place) whose neighbours in time are nearest to each other; the oldest of several.

    So those that remain are spread over the whole history. The first and the last one stay.
    """
    ordered = sorted(members)
    if len(ordered) < 3:
        return ordered[0]
    gaps = [after[0] - before[0] for before, after in zip(ordered, ordered[2:], strict=False)]
    return ordered[1 + gaps.index(min(gaps))]

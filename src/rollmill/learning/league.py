"""The league of all policies and their past selves: results and ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.ratings import Rating, RatingSystem, restored
from rollmill.learning.snapshot_keeper import DECAY, SnapshotKeeper
from rollmill.learning.trajectories import Trajectories
from rollmill.storage.matches import Match
from rollmill.storage.player_ids import PlayerIds


class Met(NamedTuple):
    """A policy's results against a past self of another policy.

    Attributes:
        generation: Of the past self.
        matches: Matches, older ones counting less.
        points: Points of the policy in them.
    """

    generation: int
    matches: float
    points: float


class Standings:
    """The ratings of all policies; shared by their leagues.

    Args:
        policies: Number of policies.
        system: How they are rated.

    Attributes:
        system: As given.
        ratings: Of each policy.
        keepers: Who keeps each policy's past selves; empty without banks.
        met: For each policy, its results against past selves of others.
    """

    def __init__(self, policies: int, system: RatingSystem) -> None:
        self.system = system
        self.ratings = [system.initial] * policies
        self.keepers: dict[int, SnapshotKeeper] = {}
        self.met: list[dict[tuple[int, int], Met]] = [{} for _ in range(policies)]

    def others_results(self, policy: int, generations: Sequence[int | None]) -> list[tuple[float, float]]:
        """Return the matches of all other policies against a policy's past selves, and their points in them.

        Args:
            policy: Whose past selves.
            generations: Those in each place of its bank.
        """
        found = []
        for place, generation in enumerate(generations):
            results = [met[policy, place] for met in self.met if (policy, place) in met]
            present = [result for result in results if result.generation == generation]
            found.append((sum(each.matches for each in present), sum(each.points for each in present)))
        return found

    def rating(self, players: PlayerIds, player: int) -> Rating | None:
        """Return the rating of a player: that of a new player for a guest, None for a past self that is gone."""
        if players.guest_index(player) is not None:
            return Rating(self.system.initial.value, 0.0)
        if not players.is_past(player):
            return self.ratings[player]
        policy, place = players.place(player)
        member = self.keepers[policy].member(place)
        return None if member is None else member.rating


class League:
    """Counts a policy's results and rates it, and lets its past selves be kept. Not thread-safe.

    Args:
        policy: Index of the policy.
        names: Names of all policies, and after them of the guests.
        guests: The guests, in their order, as the settings name them with what they are.
        players: Ids of all players.
        standings: The ratings of all policies.
        keeper: Keeps the policy's past selves; None without a bank.
    """

    def __init__(
        self,
        policy: int,
        names: Sequence[str],
        players: PlayerIds,
        standings: Standings,
        keeper: SnapshotKeeper | None = None,
        *,
        guests: Sequence[str] = (),
    ) -> None:
        self._guests = list(guests)
        self._policy = policy
        self._names = names
        self._players = players
        self._standings = standings
        self._keeper = keeper
        if keeper is not None:
            standings.keepers[policy] = keeper
        # For each policy and guest: matches against it, older ones counting less, and points in them.
        self._results = np.zeros((len(names), 2))
        self._recent = (0.0, 0.0)

    @property
    def rating(self) -> float:
        """The policy's rating, as people compare it."""
        return self._standings.system.shown(self._rating)

    def observe(self, batch: Trajectories, version: int, *, is_own: bool = True) -> None:
        """Take in the results of a batch, before the version that is learned from it.

        Args:
            batch: The batch.
            version: That version.
            is_own: Whether the policy's present weights, or earlier ones that they were learned from, have played it.
        """
        if self._keeper is not None:
            self._keeper.observe(batch, version)
        for match in batch.matches if is_own else ():
            self.count(match)

    def count(self, match: Match) -> None:
        """Count a match of the policy."""
        theirs = self._standings.rating(self._players, match.opponent)
        if theirs is None:
            return
        self._standings.ratings[self._policy] = self._standings.system.rate(self._rating, theirs, match.points)
        if not self._players.is_past(match.opponent):
            guest = self._players.guest_index(match.opponent)
            other = match.opponent if guest is None else self._players.policies + guest
            self._results[other] = self._results[other] * DECAY + (1.0, match.points)
            return
        self._recent = self._recent[0] + match.points, self._recent[1] + 1.0
        owner, place = self._players.place(match.opponent)
        if self._keeper is not None:
            self._keeper.count_points(match.points)
        if owner == self._policy and self._keeper is not None:
            self._keeper.count(place, match.points)
        else:
            self._count_met(owner, place, match.points)

    def take_over(self, other: League) -> None:
        """Start again with another policy's rating: its weights have replaced those of this policy."""
        self._standings.ratings[self._policy] = other._rating
        self._standings.met[self._policy].clear()
        self._results[:] = 0.0
        self._recent = (0.0, 0.0)
        if self._keeper is not None:
            self._keeper.forget_results()

    def publish(self, agent_steps: int, version: int, weights: NDArray[np.uint8]) -> None:
        """Take a snapshot if it is due, and publish who may be met by groups that act with this version."""
        if self._keeper is not None:
            self._keeper.take_if_due(agent_steps, version, weights, self._rating)
            others = self._standings.others_results(self._policy, self._keeper.generations)
            self._keeper.publish(version, agent_steps, self._rating, others)

    def figures(self, *, is_row: bool) -> dict[str, float | None]:
        """Numbers for metrics: the rating, snapshots taken, and shares of points.

        Args:
            is_row: Whether they are for a row, so that the next ones count from here.
        """
        found: dict[str, float | None] = {"rating": self.rating}
        if self._keeper is not None:
            points, matches = self._recent
            found |= {
                "snapshots": float(self._keeper.generation),
                "past_win_rate": points / matches if matches else None,
            }
            if is_row:
                self._recent = (0.0, 0.0)
        for other, (name, (matches, points)) in enumerate(zip(self._names, self._results.tolist(), strict=True)):
            if other != self._policy:
                found[f"win_rate/{name}"] = points / matches if matches else None
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        kept = {} if self._keeper is None else self._keeper.state_dict()
        return {
            "rating": list(self._rating),
            "rating_system": self._standings.system.kind,
            "results": self._results.tolist(),
            "guests": self._guests,
            "met": [[*key, *met] for key, met in self._standings.met[self._policy].items()],
            **kept,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`. Ratings of another system start again.

        Raises:
            ValueError: It belongs to a bank of another size, to other policies or to another network.
        """
        results = np.array(state.get("results", np.zeros_like(self._results)), np.float64)
        if results.shape != self._results.shape:
            raise ValueError(
                f"it belongs to a run of {len(results)} policies and guests, but this one has {len(self._results)}"
            )
        # A guest may have taken another one's place.
        of_guests = dict(zip(state.get("guests", self._guests), results[self._players.policies :], strict=True))
        self._results = results.copy()
        for row, guest in enumerate(self._guests, self._players.policies):
            self._results[row] = of_guests.get(guest, 0.0)
        self._standings.met[self._policy] = {
            (int(owner), int(place)): Met(int(generation), float(matches), float(points))
            for owner, place, generation, matches, points in state.get("met", ())
        }
        system = self._standings.system
        is_same = state.get("rating_system", "elo") == system.kind
        self._standings.ratings[self._policy] = restored(state["rating"]) if is_same else system.initial
        if self._keeper is not None:
            self._keeper.load_state_dict(state, keeps_ratings=is_same)

    def _count_met(self, owner: int, place: int, points: float) -> None:
        """Count a match against another policy's past self.

        The result stays with this policy, because the other one may have written its checkpoint already.
        """
        member, met = self._standings.keepers[owner].member(place), self._standings.met[self._policy]
        assert member is not None, "it has a rating"
        before = met.get((owner, place))
        if before is None or before.generation != member.generation:
            before = Met(member.generation, 0.0, 0.0)
        met[owner, place] = Met(member.generation, before.matches * DECAY + 1.0, before.points * DECAY + points)

    @property
    def _rating(self) -> Rating:
        return self._standings.ratings[self._policy]

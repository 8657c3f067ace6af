"""The result of a tournament: scores of every pair in every seat, and ratings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

_ELO = 400.0 / np.log(10.0)
_ELO_STEPS = 2000


class Score(NamedTuple):
    """Matches of one player against another one, in one seat or in all.

    Attributes:
        wins: Matches in which its return was higher.
        draws: Matches with equal returns.
        losses: The others.
    """

    wins: int
    draws: int
    losses: int

    @property
    def matches(self) -> int:
        """Number of matches."""
        return sum(self)

    @property
    def share(self) -> float:
        """Wins, and half of the draws, as a share of the matches."""
        return (self.wins + self.draws / 2) / self.matches

    @property
    def interval(self) -> tuple[float, float]:
        """The share's 95 % interval (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953)."""
        z, n, p = 1.959964, self.matches, self.share
        centre, width = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return float(max(0.0, (centre - width) / (1 + z * z / n))), float(min(1.0, (centre + width) / (1 + z * z / n)))

    @property
    def back(self) -> Score:
        """The opponent's score."""
        return Score(self.losses, self.draws, self.wins)

    def plus(self, other: Score) -> Score:
        """Both together."""
        return Score(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class TournamentResult:
    """The result of a tournament.

    Attributes:
        env: The environment's name.
        players: The players' names.
        seats: Names of the environment's agents.
        scores: (player, opponent, seat of the player) -> score, all by index.
        ratings: Elo of each player, by maximum likelihood over all matches; their mean is 0.
        seconds: Wall-clock time of the matches.
        seed: Seed of the tournament.
        videos: (player, opponent) -> the video of a match, with the player in the first seat.
        warnings: What makes figures doubtful: matches that were all the same game.
    """

    env: str
    players: tuple[str, ...]
    seats: tuple[str, ...]
    scores: dict[tuple[int, int, int], Score]
    ratings: tuple[float, ...] = field(default=())
    seconds: float
    seed: int
    videos: Mapping[tuple[int, int], str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def score(self, player: int, opponent: int) -> Score:
        """The score of a player against another one, over all seats."""
        total = Score(0, 0, 0)
        for seat in range(len(self.seats)):
            total = total.plus(self.scores[player, opponent, seat])
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""

        def figures(score: Score) -> dict[str, Any]:
            return {**score._asdict(), "share": score.share, "interval_95": list(score.interval)}

        pairs = [
            {
                "player": self.players[one],
                "opponent": self.players[other],
                **figures(self.score(one, other)),
                "video": self.videos.get((one, other)),
                "seats": {name: figures(self.scores[one, other, seat]) for seat, name in enumerate(self.seats)},
            }
            for one, other in itertools.permutations(range(len(self.players)), 2)
        ]
        return {
            "env": self.env,
            "players": list(self.players),
            "ratings": dict(zip(self.players, self.ratings, strict=True)),
            "pairs": pairs,
            "seconds": self.seconds,
            "seed": self.seed,
            "warnings": list(self.warnings),
        }

    def describe(self) -> str:
        """Format the result as text."""
        width = max(map(len, self.players))
        lines = [f"{self.env}: {len(self.players)} players, every pair in every seat"]
        order = sorted(range(len(self.players)), key=lambda player: -self.ratings[player])
        lines += [f"  {self.players[player]:<{width}}  Elo {self.ratings[player]:+7.0f}" for player in order]
        for one, other in itertools.combinations(order, 2):
            score = self.score(one, other)
            low, high = score.interval
            seats = ", ".join(
                f"as {name} {self.scores[one, other, seat].share:.2f}" for seat, name in enumerate(self.seats)
            )
            lines.append(
                f"  {self.players[one]} against {self.players[other]}: {score.wins} won, {score.draws} drawn, "
                f"{score.losses} lost of {score.matches}; share {score.share:.3f} [{low:.3f}, {high:.3f}] ({seats})"
            )
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def elo(result: TournamentResult) -> tuple[float, ...]:
    """Ratings of the players of a tournament, whose mean is 0.

    The maximum of the likelihood of all matches (Bradley and Terry 1952, https://doi.org/10.1093/biomet/39.3-4.324),
    a draw being half a win, with one drawn match more for each pair, so that a player that won all has a finite one.
    With more than two seats a player meets another one with one seat and with all others, and both count.
    """
    count = len(result.players)
    points = np.zeros((count, count))
    for one, other in itertools.permutations(range(count), 2):
        score = result.score(one, other)
        points[one, other] = score.wins + score.draws / 2 + 0.5
        if len(result.seats) > 2:
            # Other matches, in which it had all seats but one. With two seats they are the same ones.
            back = result.score(other, one).back
            points[one, other] += back.wins + back.draws / 2
    played = points + points.T
    strength = np.ones(count)
    # The minorisation of Hunter (2004), https://doi.org/10.1214/aos/1079120141.
    for _ in range(_ELO_STEPS):
        weights = played / (strength[:, None] + strength[None, :])
        new = points.sum(axis=1) / weights.sum(axis=1)
        new /= np.exp(np.log(new).mean())
        if np.allclose(new, strength, rtol=1e-10):
            break
        strength = new
    return tuple(float(value) for value in _ELO * np.log(strength))

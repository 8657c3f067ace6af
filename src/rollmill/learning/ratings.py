"""Ratings of players, from the results of their matches."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from rollmill.storage.population_config import RatingKind

_ELO_STEP = 8.0
_ELO_SCALE = 400.0


class Rating(NamedTuple):
    """A player's strength.

    Attributes:
        value: Its estimate.
        deviation: Standard deviation of the estimate; 0 where it is not estimated.
    """

    value: float
    deviation: float


class RatingSystem(Protocol):
    """Rates players.

    Attributes:
        kind: Its name in the settings.
        initial: The rating of a player without matches.
    """

    kind: RatingKind
    initial: Rating

    def rate(self, player: Rating, opponent: Rating, points: float) -> Rating:
        """Return the player's rating after a match: 1 point for a win, 1/2 for a draw, 0 for a loss."""
        ...

    def expected(self, player: Rating, opponent: Rating) -> float:
        """Return the player's expected points in a match."""
        ...

    def shown(self, rating: Rating) -> float:
        """Return the one number that people compare."""
        ...


class Elo:
    """Elo's rating, with a factor of 8 (Elo 1978, The Rating of Chessplayers). See :class:`RatingSystem`."""

    kind: RatingKind = "elo"
    initial = Rating(0.0, 0.0)

    def rate(self, player: Rating, opponent: Rating, points: float) -> Rating:
        """See :class:`RatingSystem`."""
        return Rating(player.value + _ELO_STEP * (points - self.expected(player, opponent)), 0.0)

    def expected(self, player: Rating, opponent: Rating) -> float:
        """See :class:`RatingSystem`."""
        return 1.0 / (1.0 + math.pow(10.0, (opponent.value - player.value) / _ELO_SCALE))

    def shown(self, rating: Rating) -> float:
        """See :class:`RatingSystem`."""
        return rating.value


class OpenSkill:
    """The rating of Weng and Lin (2011, https://jmlr.org/papers/v12/weng11a.html), by the package openskill.

    Like TrueSkill, it has a deviation that shrinks with every match and an estimate that draws move, too; unlike
    TrueSkill it is free to use. Thurstone and Mosteller's model of a match, which is TrueSkill's. See
    :class:`RatingSystem`.
    """

    kind: RatingKind = "openskill"

    def __init__(self) -> None:
        from openskill.models import ThurstoneMostellerFull

        # tau, added to the variance before each match, keeps the estimate moving: a policy that learns changes.
        self._model = ThurstoneMostellerFull()
        first = self._model.rating()
        self.initial = Rating(first.mu, first.sigma)

    def rate(self, player: Rating, opponent: Rating, points: float) -> Rating:
        """See :class:`RatingSystem`."""
        ((found,), _) = self._model.rate([[self._of(player)], [self._of(opponent)]], scores=[points, 1.0 - points])
        return Rating(found.mu, found.sigma)

    def expected(self, player: Rating, opponent: Rating) -> float:
        """See :class:`RatingSystem`."""
        return float(self._model.predict_win([[self._of(player)], [self._of(opponent)]])[0])

    def shown(self, rating: Rating) -> float:
        """Return a value that the player's strength exceeds with 99.9 % probability, as TrueSkill's leaderboards do."""
        return rating.value - 3.0 * rating.deviation

    def _of(self, rating: Rating) -> Any:
        return self._model.rating(mu=rating.value, sigma=rating.deviation)


def restored(saved: Any) -> Rating:
    """Return a rating from a checkpoint; in older ones it is a single number."""
    return Rating(float(saved), 0.0) if isinstance(saved, (int, float)) else Rating(*map(float, saved))


def rating_system(kind: RatingKind) -> RatingSystem:
    """Build the rating system of a name."""
    return Elo() if kind == "elo" else OpenSkill()

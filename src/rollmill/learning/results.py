"""The newest results of a policy, by which population-based training compares it with others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rollmill.storage.episodes import EpisodeEnd, episodes_of, plain_episodes
from rollmill.storage.matches import Match


class RecentResults:
    """A window of episodes and matches, which starts again when the policy is replaced by another one's weights.

    Args:
        window: How many of each are kept.

    Attributes:
        episodes: The newest ones, the last one last.
        points: Of the newest matches against other players: 1 for a win, 1/2 for a draw, 0 for a loss.
    """

    def __init__(self, window: int) -> None:
        self.episodes: deque[EpisodeEnd] = deque(maxlen=window)
        self.points: deque[float] = deque(maxlen=window)

    def add(self, episodes: Iterable[EpisodeEnd], matches: Iterable[Match] = ()) -> None:
        """Add results, in the order in which they came."""
        self.episodes.extend(episodes)
        self.points.extend(match.points for match in matches)

    def clear(self) -> None:
        """Forget all results."""
        self.episodes.clear()
        self.points.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {"episodes": plain_episodes(self.episodes), "points": list(self.points)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self.clear()
        self.episodes.extend(episodes_of(state["episodes"]))
        self.points.extend(state["points"])

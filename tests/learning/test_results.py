"""The window of a policy's newest results."""

from __future__ import annotations

from rollmill.learning.results import RecentResults
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.matches import Match


def test_the_newest_results_are_kept_saved_and_forgotten() -> None:
    results = RecentResults(2)
    results.add([EpisodeEnd(1.0, 3), EpisodeEnd(2.0, 4)], [Match(1, 0.5)])
    results.add([EpisodeEnd(5.0, 6)])
    assert list(results.episodes) == [EpisodeEnd(2.0, 4), EpisodeEnd(5.0, 6)]
    assert list(results.points) == [0.5]
    other = RecentResults(2)
    other.add([EpisodeEnd(9.0, 9)], [Match(0, 1.0)])
    other.load_state_dict(results.state_dict())
    assert other.episodes == results.episodes
    assert other.points == results.points
    results.clear()
    assert not results.episodes
    assert not results.points

"""Objectives of a policy's newest results."""

from __future__ import annotations

import pytest

from rollmill.learning.results import RecentResults
from rollmill.pbt.objectives import OBJECTIVES, register_objective, score
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.matches import Match


def results(*returns: float, points: tuple[float, ...] = (), window: int = 3) -> RecentResults:
    found = RecentResults(window)
    found.add([EpisodeEnd(value, 5) for value in returns], [Match(1, value) for value in points])
    return found


def test_a_policy_takes_part_once_its_window_is_full() -> None:
    assert score("return", results(1.0, 2.0), None) is None
    assert score("return", results(1.0, 2.0, -9.0), None) == -2.0
    assert score("return", results(5.0, 1.0, 2.0, -9.0), None) == -2.0
    assert score("win_rate", results(1.0, 2.0, 3.0, points=(1.0, 0.5)), None) is None
    assert score("win_rate", results(points=(1.0, 0.5, 0.0)), None) == 0.5
    assert score("rating", results(points=(1.0,)), 100.0) is None
    assert score("rating", results(points=(1.0, 1.0, 1.0)), 24.0) == 24.0


def test_an_objective_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBJECTIVES, "factories", dict(OBJECTIVES.factories))
    register_objective("worst", lambda found: min(episode.episode_return for episode in found.episodes))
    register_objective("broken", lambda found: float("nan"))
    assert score("worst", results(1.0, -2.0, 3.0), None) == -2.0
    with pytest.raises(ValueError, match=r"pbt\.objective='broken' gave nan: return a finite number"):
        score("broken", results(1.0, 2.0, 3.0), None)
    with pytest.raises(ValueError, match=r"pbt\.objective='wrst': this objective is not known; did you mean 'worst'"):
        score("wrst", results(1.0, 2.0, 3.0), None)
    with pytest.raises(ValueError, match="objective 'return' exists already"):
        register_objective("return", lambda found: 0.0)

"""The page of a tournament."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmill.comparing.page import NotWritableError
from rollmill.comparing.tournament_page import write_tournament_page
from rollmill.evaluation.tournament_result import Score, TournamentResult


def a_result(folder: Path) -> TournamentResult:
    scores = {(0, 1, 0): Score(1, 1, 2), (0, 1, 1): Score(4, 0, 0)}
    scores |= {(1, 0, seat): scores[0, 1, 1 - seat].back for seat in range(2)}
    return TournamentResult(
        env="test",
        players=("<weak>", "strong"),
        seats=("white", "black"),
        scores=scores,
        ratings=(-40.0, 40.0),
        seconds=1.0,
        seed=7,
        videos={(0, 1): str(folder / "videos/one.mp4")},
        warnings=("all matches of <weak> were the same game",),
    )


def test_ratings_pairs_seats_and_videos_are_on_the_page(tmp_path: Path) -> None:
    page = write_tournament_page(a_result(tmp_path), tmp_path).read_text()
    assert page.index("strong") < page.index("&lt;weak&gt;"), "the best one first"
    assert "<weak>" not in page
    # 1 + 4 wins and a draw of eight matches: 5.5 points.
    assert "0.688 [" in page
    assert "as white" in page
    assert "Every pair met 4 times in each seat; seed 7" in page
    assert 'src="videos/one.mp4"' in page
    assert "Warning: all matches of &lt;weak&gt; were the same game." in page
    figures = json.loads((tmp_path / "tournament.json").read_text())
    assert figures["ratings"] == {"<weak>": -40.0, "strong": 40.0}
    assert figures["pairs"][0]["video"] == str(tmp_path / "videos/one.mp4")


def test_a_page_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritableError, match="give another directory"):
        write_tournament_page(a_result(tmp_path), tmp_path / "file")

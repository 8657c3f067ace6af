"""A page with the result of a tournament: ratings, every pair, and videos."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path

from rollmill.comparing.markup import write_page
from rollmill.comparing.page import NotWritableError
from rollmill.comparing.tables import table
from rollmill.evaluation.tournament_result import Score, TournamentResult

PAGE = "tournament.html"
RESULT = "tournament.json"
VIDEOS = "videos"


def check_page_folder(folder: Path | str) -> None:
    """Make the folder of a page, before matches are played for it.

    Raises:
        NotWritableError: It cannot be created or written to.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _not_writable(folder, "you may not write there")


def write_tournament_page(result: TournamentResult, folder: Path | str) -> Path:
    """Write the page, and all figures as JSON.

    Args:
        result: The result.
        folder: Directory of both files; videos in it are shown on the page.

    Returns:
        The page.

    Raises:
        NotWritableError: The directory cannot be created or written to.
    """
    folder = Path(folder)
    order = sorted(range(len(result.players)), key=lambda player: -result.ratings[player])
    title = f"Tournament: {result.env}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _ratings(result, order),
        _seats(result, order),
        '<p class="note">Share of the points, 1 for a win and 1/2 for a draw, with its 95 % interval (Wilson). Every '
        f"pair met {result.scores[0, 1, 0].matches} times in each seat; seed {result.seed}.</p>",
        *(f'<p class="note">Warning: {html.escape(warning)}.</p>' for warning in result.warnings),
        *_videos(result, folder),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).write_text(json.dumps(result.to_dict(), indent=2) + "\n")
        write_page(folder / PAGE, title, parts)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return folder / PAGE


def _not_writable(folder: Path, reason: OSError | str) -> NotWritableError:
    if isinstance(reason, OSError):
        reason = reason.strerror or str(reason)
    return NotWritableError(f"the page cannot be written to {folder} ({reason}): give another directory (--output)")


def _ratings(result: TournamentResult, order: list[int]) -> str:
    rows = []
    for one in order:
        against = ["-" if one == other else _share(result.score(one, other)) for other in order]
        rows.append([result.players[one], f"{result.ratings[one]:+.0f}", *against])
    return table(["player", "Elo", *(f"against {result.players[other]}" for other in order)], rows)


def _seats(result: TournamentResult, order: list[int]) -> str:
    rows = []
    for one in order:
        for other in order:
            if one != other:
                total = result.score(one, other)
                shares = [_share(result.scores[one, other, seat]) for seat in range(len(result.seats))]
                pair = f"{result.players[one]} against {result.players[other]}"
                rows.append([pair, str(total.wins), str(total.draws), str(total.losses), *shares])
    head = ["pair", "won", "drawn", "lost", *(f"as {seat}" for seat in result.seats)]
    return "<h2>Seats</h2>" + table(head, rows)


def _videos(result: TournamentResult, folder: Path) -> list[str]:
    shown = []
    for (one, other), path in result.videos.items():
        source = html.escape(os.path.relpath(path, folder), quote=True)
        title = html.escape(f"{result.players[one]} ({result.seats[0]}) against {result.players[other]}")
        shown.append(f'<h3>{title}</h3><video controls preload="metadata" src="{source}"></video>')
    return ["<h2>Videos</h2>", *shown] if shown else []


def _share(score: Score) -> str:
    low, high = score.interval
    return f"{score.share:.3f} [{low:.3f}, {high:.3f}]"

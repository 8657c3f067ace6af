"""The opponents for connect four against literal rules."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.evaluation.players import PLAYERS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(PLAYERS, "factories", {})
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import connect_four_players

    yield connect_four_players
    del sys.modules["connect_four_players"]


def wins(stones: Any) -> bool:
    """Whether bool ``[6, 7]`` holds four in a row, literally."""
    for row, column, (down, right) in itertools.product(range(6), range(7), ((0, 1), (1, 0), (1, 1), (1, -1))):
        line = [(row + step * down, column + step * right) for step in range(4)]
        if all(0 <= r < 6 and 0 <= c < 7 and stones[r, c] for r, c in line):
            return True
    return False


def drop(board: Any, column: int, whose: int) -> Any:
    """The board ``[6, 7, 2]``, the top row first, after a move."""
    new = board.copy()
    row = max(r for r in range(6) if not new[r, column].any())
    new[row, column, whose] = True
    return new


def value(board: Any, whose: int, depth: int) -> int:
    """1, 0 or -1 for the player to move with this many moves of looking ahead, without pruning."""
    moves = [column for column in range(7) if not board[0, column].any()]
    best = -1 if moves and depth else 0
    for column in moves if depth else ():
        new = drop(board, column, whose)
        best = max(best, 1 if wins(new[..., whose]) else -value(new, 1 - whose, depth - 1))
    return best


def random_boards(random: np.random.Generator, count: int) -> Iterator[Any]:
    while count:
        board, moves = np.zeros((6, 7, 2), bool), int(random.integers(4, 26))
        for move in range(moves):
            free = [column for column in range(7) if not board[0, column].any()]
            board = drop(board, int(random.choice(free)), (moves - move) % 2)
            if wins(board[..., 0]) or wins(board[..., 1]):
                break
        else:
            count -= 1
            yield board


@pytest.mark.slow
def test_minimax_takes_a_best_move(players: Any) -> None:
    random = np.random.default_rng(0)
    choose = players.make_minimax(3)()
    decided = 0
    for board in random_boards(random, 25):
        column = choose(board, None)
        best = value(board, 0, 3)
        new = drop(board, column, 0)
        assert (1 if wins(new[..., 0]) else -value(new, 1, 2)) == best
        decided += best != 0
    assert decided > 4


def test_win_or_block_completes_four_or_blocks(players: Any) -> None:
    random = np.random.default_rng(1)
    choose = players.make_win_or_block()
    won = blocked = 0
    for board in random_boards(random, 120):
        free = [column for column in range(7) if not board[0, column].any()]
        own = [column for column in free if wins(drop(board, column, 0)[..., 0])]
        others = [column for column in free if wins(drop(board, column, 1)[..., 1])]
        column = choose(board, None)
        assert column in (own or others or free)
        won += bool(own)
        blocked += bool(others and not own)
    assert won > 8
    assert blocked > 8


def test_all_are_registered(players: Any) -> None:
    assert set(PLAYERS.factories) == {"win_or_block", "minimax_2", "minimax_4"}

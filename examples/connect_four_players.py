"""Opponents for connect four, to measure trained agents against.

    rollmill tournament RUN_DIR random win_or_block minimax_4 --import examples/connect_four_players.py --matches 200

``win_or_block`` completes four in a row, else blocks the opponent's, else moves at random. ``minimax_N`` searches N
moves deep with alpha-beta, and takes a random one of the best moves; four in a row counts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rollmill

ROWS, COLUMNS = 6, 7
# The columns from the middle outwards, where the best moves tend to be.
ORDER = (3, 2, 4, 1, 5, 0, 6)
_HEIGHT = ROWS + 1  # A bit of each column stays free, so that shifted boards do not run into the next one.


def has_four(board: int) -> bool:
    """Whether a board, a bit for each stone of one player, holds four in a row."""
    for shift in (1, _HEIGHT, _HEIGHT - 1, _HEIGHT + 1):
        pairs = board & (board >> shift)
        if pairs & (pairs >> 2 * shift):
            return True
    return False


def boards_of(observation: Any) -> tuple[int, int, list[int]]:
    """The stones of the player to move, those of the other one, and the height of each column.

    Args:
        observation: ``[6, 7, 2]``, the top row first, as EnvPool and PettingZoo give it.
    """
    own = other = 0
    heights = [0] * COLUMNS
    for row, column, whose in zip(*np.nonzero(observation), strict=True):
        stone = 1 << (int(column) * _HEIGHT + ROWS - 1 - int(row))
        if whose == 0:
            own |= stone
        else:
            other |= stone
        heights[column] += 1
    return own, other, heights


def moves_of(heights: list[int]) -> list[tuple[int, int]]:
    """(column, bit of the stone) of every move."""
    return [(column, 1 << (column * _HEIGHT + heights[column])) for column in ORDER if heights[column] < ROWS]


def search(own: int, other: int, heights: list[int], depth: int, low: int, high: int) -> int:
    """Value for the player to move: 1 + the depth left when it wins, the negative of that when it loses, or 0."""
    if depth == 0:
        return 0
    moves = moves_of(heights)
    best = -(1 << 30) if moves else 0
    for column, stone in moves:
        if has_four(own | stone):
            return depth
        heights[column] += 1
        value = -search(other, own | stone, heights, depth - 1, -high, -low)
        heights[column] -= 1
        best = max(best, value)
        low = max(low, value)
        if low >= high:
            break
    return best


def make_win_or_block() -> Callable[[Any, Any], int]:
    """Build the player that looks one move ahead."""
    random = np.random.default_rng(0)

    def choose(observation: Any, mask: Any) -> int:
        own, other, heights = boards_of(observation)
        moves = moves_of(heights)
        for board in (own, other):
            for column, stone in moves:
                if has_four(board | stone):
                    return column
        return int(random.choice([column for column, _ in moves]))

    return choose


def make_minimax(depth: int) -> Callable[[], Callable[[Any, Any], int]]:
    """Build the factory of the player that searches this deep."""

    def make() -> Callable[[Any, Any], int]:
        random = np.random.default_rng(0)

        def choose(observation: Any, mask: Any) -> int:
            own, other, heights = boards_of(observation)
            values = {}
            for column, stone in moves_of(heights):
                if has_four(own | stone):
                    values[column] = depth
                    continue
                heights[column] += 1
                values[column] = -search(other, own | stone, heights, depth - 1, -depth, depth)
                heights[column] -= 1
            best = max(values.values())
            return int(random.choice([column for column, value in values.items() if value == best]))

        return choose

    return make


rollmill.register_player("win_or_block", make_win_or_block)
rollmill.register_player("minimax_2", make_minimax(2))
rollmill.register_player("minimax_4", make_minimax(4))

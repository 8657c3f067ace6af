"""Ends of episodes as messages: an episode's return and length, or the result of a match, in one integer."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rollmill.storage.matches import Match

_LONGEST = 0x7FFFFFFF


@dataclass(frozen=True)
class EpisodeEnd:
    """One episode that ended.

    Attributes:
        episode_return: Its undiscounted raw return.
        episode_length: Its length in agent steps.
        objective: What it was worth by the task's own measure, NaN if the environment did not give it; None if it is
            not needed.
        task: Index of its task; None without several.
    """

    episode_return: float
    episode_length: int
    objective: float | None = None
    task: int | None = None


def plain_episodes(episodes: Iterable[EpisodeEnd]) -> list[list[Any]]:
    """Episodes as plain data, of which :func:`episodes_of` makes them again."""
    return [
        [float(episode.episode_return), int(episode.episode_length), episode.objective, episode.task][
            : 4 if episode.task is not None else 3 if episode.objective is not None else 2
        ]
        for episode in episodes
    ]


def episodes_of(plain: Iterable[Sequence[Any]]) -> list[EpisodeEnd]:
    """What :func:`plain_episodes` was given."""
    return [EpisodeEnd(episode_return, int(length), *rest) for episode_return, length, *rest in plain]


def pack_episode(episode_return: float, episode_length: int) -> int:
    """An episode's undiscounted return, as float32, and its length in agent steps as one message, at least 0."""
    return int.from_bytes(struct.pack("<f", episode_return), "little") | min(episode_length, _LONGEST) << 32


def pack_match(match: Match) -> int:
    """The result of a match as one message, which no episode has: it would have the length 0."""
    return match.opponent << 2 | round(2 * match.points)


def unpack_match(message: int) -> Match | None:
    """What :func:`pack_match` packed; None if it is an episode."""
    return None if message >> 32 else Match(message >> 2, (message & 3) / 2)


def unpack_episode(message: int) -> EpisodeEnd:
    """What :func:`pack_episode` packed."""
    (episode_return,) = struct.unpack("<f", (message & 0xFFFFFFFF).to_bytes(4, "little"))
    return EpisodeEnd(episode_return, message >> 32)

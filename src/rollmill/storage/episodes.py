"""Ends of episodes as messages: an episode's return and length in one integer."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LONGEST = 0x7FFFFFFF


@dataclass(frozen=True)
class EpisodeEnd:
    """One episode that ended: its undiscounted raw return and its length in agent steps."""

    episode_return: float
    episode_length: int


def plain_episodes(episodes: Iterable[EpisodeEnd]) -> list[list[float]]:
    """Episodes as plain data, of which :func:`episodes_of` makes them again."""
    return [[float(episode.episode_return), int(episode.episode_length)] for episode in episodes]


def episodes_of(plain: Iterable[Sequence[float]]) -> list[EpisodeEnd]:
    """What :func:`plain_episodes` was given."""
    return [EpisodeEnd(episode_return, int(length)) for episode_return, length in plain]


def pack_episode(episode_return: float, episode_length: int) -> int:
    """An episode's undiscounted return, as float32, and its length in agent steps as one message, at least 0."""
    return int.from_bytes(struct.pack("<f", episode_return), "little") | min(episode_length, _LONGEST) << 32


def unpack_episode(message: int) -> EpisodeEnd:
    """What :func:`pack_episode` packed."""
    (episode_return,) = struct.unpack("<f", (message & 0xFFFFFFFF).to_bytes(4, "little"))
    return EpisodeEnd(episode_return, message >> 32)

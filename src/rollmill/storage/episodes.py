"""Ends of episodes as messages: an episode's return, length and task, or a match's result, in one integer."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rollmill.storage.matches import Match

# Bits of a message, from the lowest: the return, the length, and the task, counted from 1.
_RETURN_BITS, _LENGTH_BITS, _TASK_BITS = 32, 23, 8
_LONGEST, _MOST_TASKS = (1 << _LENGTH_BITS) - 1, (1 << _TASK_BITS) - 1
# Of each of many tasks, however small the window.
_FEWEST_OF_A_TASK = 5


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


def episodes_of_each_task(window: int, num_tasks: int) -> int:
    """Return how many episodes of each task a window has: of several tasks, their share of it, at least 5.

    Args:
        window: Episodes in all.
        num_tasks: Number of tasks; 0 without several.
    """
    return max(_FEWEST_OF_A_TASK, -(-window // num_tasks)) if num_tasks else window


def newest_episodes(episodes: Sequence[EpisodeEnd], window: int, num_tasks: int = 0) -> list[EpisodeEnd]:
    """Return the last episodes of each task, in the order in which they ended.

    Short episodes end more often. Among the last ones of all tasks there would be few of a task with long ones.

    Args:
        episodes: In the order in which they ended.
        window: As for :func:`episodes_of_each_task`.
        num_tasks: Likewise.
    """
    each = episodes_of_each_task(window, num_tasks)
    counts: Counter[int | None] = Counter()
    kept = []
    for episode in reversed(episodes):
        counts[episode.task] += 1
        if counts[episode.task] <= each:
            kept.append(episode)
    return kept[::-1]


def mean_return(episodes: Iterable[EpisodeEnd], num_tasks: int = 0, *, least: int = 1) -> float | None:
    """Return the mean return of episodes, of several tasks the mean of the tasks' mean returns.

    Args:
        episodes: The episodes.
        num_tasks: Number of tasks; 0 without several.
        least: None is returned while a task has fewer episodes.
    """
    of_task: defaultdict[int | None, list[float]] = defaultdict(list)
    for episode in episodes:
        of_task[episode.task].append(episode.episode_return)
    if len(of_task) < max(1, num_tasks) or any(len(returns) < least for returns in of_task.values()):
        return None
    return fmean(map(fmean, of_task.values()))


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


def pack_episode(episode_return: float, episode_length: int, task: int | None = None) -> int:
    """An episode's undiscounted return, as float32, its length in agent steps, and its task as one message.

    Lengths above 8,388,607 and tasks from 255 on do not fit: the first are capped, the second are left out.
    """
    number = 0 if task is None or task >= _MOST_TASKS else task + 1
    length = max(1, min(episode_length, _LONGEST))
    bits = int.from_bytes(struct.pack("<f", episode_return), "little")
    return bits | length << _RETURN_BITS | number << (_RETURN_BITS + _LENGTH_BITS)


def pack_match(match: Match) -> int:
    """The result of a match as one message, which no episode has: it would have the length 0."""
    return match.opponent << 2 | round(2 * match.points)


def unpack_match(message: int) -> Match | None:
    """What :func:`pack_match` packed; None if it is an episode."""
    return None if message >> _RETURN_BITS else Match(message >> 2, (message & 3) / 2)


def unpack_episode(message: int) -> EpisodeEnd:
    """What :func:`pack_episode` packed."""
    (episode_return,) = struct.unpack("<f", (message & 0xFFFFFFFF).to_bytes(4, "little"))
    number = message >> (_RETURN_BITS + _LENGTH_BITS)
    length = message >> _RETURN_BITS & _LONGEST
    return EpisodeEnd(episode_return, length, task=number - 1 if number else None)

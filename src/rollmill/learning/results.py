"""The newest results of a policy, by which population-based training compares it with others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rollmill.storage.episodes import EpisodeEnd, episodes_of, episodes_of_each_task, plain_episodes
from rollmill.storage.matches import Match


class RecentResults:
    """A window of episodes and matches, which starts again when the policy is replaced by another one's weights.

    Args:
        window: How many of each are kept; of several tasks, their share of each, at least 5.
        tasks: Names of the tasks; empty without several.

    Attributes:
        tasks: As given.
        points: Of the newest matches against other players: 1 for a win, 1/2 for a draw, 0 for a loss.
    """

    def __init__(self, window: int, tasks: Sequence[str] = ()) -> None:
        self.tasks = tuple(tasks)
        each = episodes_of_each_task(window, len(tasks))
        self._episodes: list[deque[EpisodeEnd]] = [deque(maxlen=each) for _ in tasks or ("",)]
        self.points: deque[float] = deque(maxlen=window)

    @property
    def episodes(self) -> list[EpisodeEnd]:
        """The newest ones, the last one last; of several tasks, those of the first task first."""
        return [episode for of_task in self._episodes for episode in of_task]

    @property
    def has_all_episodes(self) -> bool:
        """Whether the window of episodes is full."""
        return all(len(of_task) == of_task.maxlen for of_task in self._episodes)

    @property
    def has_all_points(self) -> bool:
        """Whether the window of matches is full."""
        return len(self.points) == self.points.maxlen

    def mean_returns(self) -> dict[str, float]:
        """Return task -> mean return of its episodes; ``""`` is the name of the only one."""
        names = self.tasks or ("",)
        return {
            name: fmean(episode.episode_return for episode in of_task)
            for name, of_task in zip(names, self._episodes, strict=True)
            if of_task
        }

    def add(self, episodes: Iterable[EpisodeEnd], matches: Iterable[Match] = ()) -> None:
        """Add results, in the order in which they came."""
        for episode in episodes:
            self._episodes[episode.task or 0].append(episode)
        self.points.extend(match.points for match in matches)

    def clear(self) -> None:
        """Forget all results."""
        for of_task in self._episodes:
            of_task.clear()
        self.points.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {"episodes": plain_episodes(self.episodes), "points": list(self.points)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self.clear()
        self.add(episodes_of(state["episodes"]))
        self.points.extend(state["points"])


class OwnResults:
    """Excludes results of weights that others have replaced, where messages of results name no version (replay).

    Rows are assumed to step equally fast. An episode of L steps began after the replacement if rows have made L steps
    since. A match did if rows have made as many steps as the longest episode that has ended since.

    Args:
        rows: Rows of the run.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._replaced_at: int | None = None
        self._longest = 0

    def begin(self, inserted: int) -> None:
        """Exclude all that began before now, after ``inserted`` agent steps of all policies."""
        self._replaced_at, self._longest = inserted, 0

    def select(
        self, episodes: Sequence[EpisodeEnd], matches: Sequence[Match], inserted: int
    ) -> tuple[Sequence[EpisodeEnd], Sequence[Match]]:
        """Return the results that are of the present weights.

        Args:
            episodes: Those that have ended, among them those of all the matches.
            matches: Those that have ended.
            inserted: Agent steps of all policies by now.
        """
        if self._replaced_at is None:
            return episodes, matches
        steps = (inserted - self._replaced_at) / self._rows
        self._longest = max([self._longest, *(episode.episode_length for episode in episodes)])
        own = [episode for episode in episodes if episode.episode_length <= steps]
        return own, matches if 0 < self._longest <= steps else ()

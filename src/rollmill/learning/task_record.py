"""What a learner counts of several tasks: samples, returns and scores of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.report import RECENT_EPISODES
from rollmill.scores import human_normalised, mean_capped, median
from rollmill.storage.episodes import EpisodeEnd

# Between two rows there may be a single batch, of a single task.
_ROWS_OF_A_SHARE = 10


class TaskRecord:
    """The tasks of one learner.

    Args:
        names: The tasks' names.
        seconds: float64 ``[workers, tasks]``: how long rollout workers have stepped each task, for all policies.
    """

    def __init__(self, names: Sequence[str], seconds: NDArray[np.float64]) -> None:
        self._names = names
        self._seconds = seconds
        self._samples = np.zeros(len(names), np.int64)
        # Samples and seconds at the last rows, the oldest first.
        self._rows: deque[tuple[NDArray[np.int64], NDArray[np.float64]]] = deque(maxlen=_ROWS_OF_A_SHARE)
        self._rows.append((self._samples.copy(), seconds.sum(axis=0)))
        self._returns: list[deque[float]] = [deque(maxlen=RECENT_EPISODES) for _ in names]

    def count(self, tasks: NDArray[np.int64], keep: NDArray[np.bool_]) -> None:
        """Count the samples of a batch.

        Args:
            tasks: int64 ``[N]``, the task of each trajectory.
            keep: bool ``[T, N]``, samples that are learned from.
        """
        np.add.at(self._samples, tasks, np.count_nonzero(keep, axis=0))

    def take_episodes(self, episodes: Iterable[EpisodeEnd]) -> None:
        """Take in episodes that have ended."""
        for episode in episodes:
            if episode.task is not None:
                self._returns[episode.task].append(episode.episode_return)

    def forget_episodes(self) -> None:
        """Forget the episodes so far, which replaced weights have played."""
        for returns in self._returns:
            returns.clear()

    def figures(self, *, is_row: bool) -> dict[str, float | None]:
        """Return the columns of the metrics; shares are those since a few rows ago.

        Args:
            is_row: Whether this becomes a row.
        """
        seconds, (samples_before, seconds_before) = self._seconds.sum(axis=0), self._rows[0]
        samples_since, seconds_since = self._samples - samples_before, seconds - seconds_before
        if is_row:
            self._rows.append((self._samples.copy(), seconds))
        means = {name: fmean(found) for name, found in zip(self._names, self._returns, strict=True) if found}
        found: dict[str, float | None] = {}
        for index, name in enumerate(self._names):
            found[f"task/{name}/episode_return"] = means.get(name)
            found[f"task/{name}/samples"] = _share(samples_since, index)
            found[f"task/{name}/compute"] = _share(seconds_since, index)
        return found | score_figures(self._names, means)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the newest returns as plain data."""
        return {
            "names": list(self._names),
            "samples": self._samples.tolist(),
            "samples_of_rows": [samples.tolist() for samples, _ in self._rows],
            "returns": [list(returns) for returns in self._returns],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, of the tasks that are still learned."""
        for name, samples, returns in zip(state["names"], state["samples"], state["returns"], strict=True):
            if name in self._names:
                index = self._names.index(name)
                self._samples[index] = samples
                self._returns[index].clear()
                self._returns[index].extend(returns)
        # Shares of samples go on as in an uninterrupted run; the time of an earlier session is not known.
        of_rows = state.get("samples_of_rows", [state["samples"]])
        self._rows.clear()
        for samples in of_rows:
            of_names = dict(zip(state["names"], samples, strict=True))
            row = np.array([of_names.get(name, 0) for name in self._names], np.int64)
            self._rows.append((row, self._seconds.sum(axis=0)))


def score_figures(names: Sequence[str], returns: Mapping[str, float]) -> dict[str, float | None]:
    """Return human-normalised scores: of each task that has one, their mean, median and capped mean.

    Args:
        names: All tasks; the means are None until every one of them that has a score has a return.
        returns: Task -> mean return.
    """
    known = [name for name in names if human_normalised(name, 0.0) is not None]
    ended = {name: returns[name] for name in known if name in returns}
    scores = {name: human_normalised(name, value) for name, value in ended.items()}
    found: dict[str, float | None] = {f"task/{name}/score": scores.get(name) for name in known}
    if not known:
        return found
    is_complete = len(ended) == len(known)
    found["score/mean"] = fmean(score for score in scores.values() if score is not None) if is_complete else None
    found["score/median"] = median(ended) if is_complete else None
    found["score/mean_capped"] = mean_capped(ended) if is_complete else None
    return found


def _share(amounts: NDArray[Any], index: int) -> float | None:
    total = float(amounts.sum())
    return float(amounts[index]) / total if total else None

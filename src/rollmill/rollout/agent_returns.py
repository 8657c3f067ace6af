"""The returns of each agent of a multi-agent environment, for rows of metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.envs.views import Array

_MOST_ALONE = 16


class AgentReturns:
    """Adds up the returns of episodes that have ended, by agent.

    With more than 16 agents, those whose names differ by a number at the end share one mean.

    Args:
        agents: Names of an environment's agents, in the order of the rows; empty for ordinary environments, for
            which nothing is reported.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        shown = [_family(name) for name in agents] if len(agents) > _MOST_ALONE else list(agents)
        self._names = list(dict.fromkeys(shown))
        self._name_of_agent = np.array([self._names.index(name) for name in shown], np.int64)
        self._sums = np.zeros(len(self._names))
        self._counts = np.zeros(len(self._names), np.int64)

    def add(self, episode_return: Array) -> None:
        """Add the episodes that ended in a step of a group.

        Args:
            episode_return: Float ``[B]``, NaN in rows whose episode goes on.
        """
        if not self._names:
            return
        rows = np.flatnonzero(~np.isnan(episode_return))
        if len(rows):
            names = self._name_of_agent[rows % len(self._name_of_agent)]
            np.add.at(self._sums, names, episode_return[rows])
            np.add.at(self._counts, names, 1)

    def take(self) -> EnvMetrics:
        """Return what was added since the last call."""
        returns = {
            name: (float(total), int(count))
            for name, total, count in zip(self._names, self._sums, self._counts, strict=True)
            if count
        }
        self._sums.fill(0.0)
        self._counts.fill(0)
        return EnvMetrics({}, {}, returns)


def _family(name: str) -> str:
    """Return an agent's name without a number at its end: ``pursuer_12`` is ``pursuer``."""
    return name.rstrip("0123456789").rstrip("_-") or name

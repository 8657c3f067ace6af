"""Finds matches that were the same game, because neither the players nor the environment vary."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import AgentRows, Array, ObservationView, OutcomeView

_FEWEST_MATCHES = 6


class RepeatedGames:
    """Steps a group of environments, and compares what agents saw and did in their matches.

    Checksums cost time only until two matches of a kind differ, which is after the first ones where games vary.

    Args:
        group: The environments.
        kind_of_game: For each environment, who plays which seat: matches of one kind are compared.
    """

    def __init__(self, group: AgentRows, kind_of_game: NDArray[np.int64]) -> None:
        self.num_rows = group.num_rows
        self.failures = group.failures
        self._group = group
        self._kinds = kind_of_game
        self._agents = group.num_rows // len(kind_of_game)
        self._checksums = [0] * len(kind_of_game)
        self._is_compared = np.ones(len(kind_of_game), bool)
        # Kind -> checksum of its first match, and its matches.
        self._first: dict[int, int] = {}
        self._matches: dict[int, int] = {}

    def reset(self, into: ObservationView) -> None:
        """See ``Group.reset``."""
        self._group.reset(into)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Add what agents see and do to the checksums, and step; see ``Group.step``."""
        # What is done in the step that resets a game belongs to no match.
        for game in np.flatnonzero(self._is_compared & ~self._group.resets_next).tolist():
            rows = slice(game * self._agents, (game + 1) * self._agents)
            assert into.acts is not None, "the spec of a multi-agent environment names its agents"
            acts = into.acts[rows]
            checksum = zlib.crc32(acts.tobytes(), self._checksums[game])
            for array in (*into.observation.values(), discrete, continuous):
                if array is not None:
                    checksum = zlib.crc32(array[rows][acts].tobytes(), checksum)
            self._checksums[game] = checksum
        self._group.step(discrete, continuous, into, outcome)

    def close(self) -> None:
        """See ``Group.close``."""
        self._group.close()

    def begin(self, game: int) -> None:
        """Forget what was done in an environment, whose next match begins."""
        self._checksums[game] = 0

    def end(self, game: int, returns: NDArray[np.float64]) -> None:
        """Compare a match that has ended with the first one of its kind.

        Args:
            game: Index of the environment.
            returns: Return of each agent.
        """
        kind = int(self._kinds[game])
        self._matches[kind] = self._matches.get(kind, 0) + 1
        checksum = zlib.crc32(returns.tobytes(), self._checksums[game])
        if self._first.setdefault(kind, checksum) != checksum:
            self._is_compared[self._kinds == kind] = False

    def is_repeated(self, kind: int) -> bool:
        """Whether all matches of a kind were the same game, of at least six: fewer may be equal by chance."""
        return self._matches.get(kind, 0) >= _FEWEST_MATCHES and bool(self._is_compared[self._kinds == kind].all())

"""A source of batches drawn from the replay as fast as the rate limiter allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any

import numpy as np

from rollmill.learning.batch_loader import POLL_S
from rollmill.storage.episodes import EpisodeEnd, unpack_episode, unpack_match
from rollmill.storage.matches import Match
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, Sampler

# One batch is in use, one is ready, one is being filled.
_BATCHES = 3
_MOST_MESSAGES = 4096
# Failed draws, about a second's worth, from a replay that accepts no more steps.
_MOST_FRUITLESS = 50


class NothingToDrawError(RuntimeError):
    """Deadlock: learning waits for samples, and collecting waits for learning."""

    def __init__(self, inserted: int, limits: RateLimits) -> None:
        super().__init__(
            f"after {inserted:,} agent steps nothing in the replay can be drawn, and replay.update_interval="
            f"{limits.update_interval:g} allows no more steps before a batch is learned: the samples were "
            "overwritten or incomplete. Use a larger replay.capacity, min_size or error_buffer, or fewer steps "
            "a sample (n_step, sequence_length)"
        )


class ReplaySource:
    """Batches for one learner, for a :class:`rollmill.learning.batch_loader.BatchLoader`.

    Args:
        store: The replay.
        sampler: Draws samples.
        config: The replay's configuration, for beta.
        batch_size: Samples of a batch.
        total_steps: Agent steps of the run, for annealing beta.
        learner: Index of the learner.
    """

    def __init__(
        self,
        store: ReplayStore,
        sampler: Sampler[Any],
        config: ReplayConfig,
        *,
        batch_size: int,
        total_steps: int,
        learner: int = 0,
    ) -> None:
        self._store = store
        self._sampler = sampler
        self._config = config
        self._total_steps = total_steps
        self._ring = store.completed[learner]
        self._messages = np.empty(_MOST_MESSAGES, np.int64)
        self._free: Queue[Drawn] = Queue()
        for _ in range(_BATCHES):
            self._free.put(sampler.make_batch(batch_size))
        self._episodes: deque[EpisodeEnd] = deque()
        self._matches: deque[Match] = deque()
        self._fruitless = 0

    def collect(self) -> Iterator[Drawn]:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        if self._wait() and (batch := self._take_free()) is not None and self._draw(batch):
            yield batch

    def while_full(self) -> None:
        """Receive the episodes that have ended."""
        self._receive_episodes(0.0)

    def wake(self) -> None:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        self._ring.wake()

    def give_back(self, batch: Drawn) -> None:
        """Return a batch's arrays for reuse."""
        self._free.put(batch)

    def take_episodes(self) -> list[EpisodeEnd]:
        """Return the episodes that have ended since the last call."""
        return [self._episodes.popleft() for _ in range(len(self._episodes))]

    def take_matches(self) -> list[Match]:
        """Return the results of the policy's matches that have ended since the last call."""
        return [self._matches.popleft() for _ in range(len(self._matches))]

    def _wait(self) -> bool:
        """Wait briefly until a batch may be drawn; receives episodes meanwhile."""
        limiter = self._store.limiter
        if limiter.may_draw:
            self._receive_episodes(0.0)
            return True
        # Announced before the last check, so that no wake-up is missed.
        limiter.wait_as_learner(1)
        try:
            self._receive_episodes(0.0 if limiter.may_draw else POLL_S)
        finally:
            limiter.wait_as_learner(-1)
        return limiter.may_draw

    def _receive_episodes(self, timeout_s: float) -> None:
        count = self._ring.get_many(self._messages, timeout_s)
        for message in self._messages[:count].tolist():
            if (match := unpack_match(message)) is not None:
                self._matches.append(match)
            else:
                self._episodes.append(unpack_episode(message))

    def _take_free(self) -> Drawn | None:
        try:
            return self._free.get(timeout=POLL_S)
        except Empty:
            self._receive_episodes(0.0)
            return None

    def _end_deadlock(self) -> None:
        """Skip the batches of a policy whose steps those of others have overwritten; raise for a policy alone."""
        limiter = self._store.limiter
        if len(self._store.limiters) == 1:
            raise NothingToDrawError(limiter.inserted, limiter.limits)
        limiter.skip_batches()
        self._fruitless = 0
        self._store.wake_parked()

    def _draw(self, batch: Drawn) -> bool:
        """Fill a batch, or return it."""
        limiter = self._store.limiter
        if not limiter.try_draw():  # Another learner was faster.
            self.give_back(batch)
            return False
        was_full = limiter.is_full
        reached = max(0, limiter.inserted_by_all - limiter.behind)
        if self._sampler.draw(batch, self._config.beta_at(reached / self._total_steps)):
            self._fruitless = 0
            self._store.wake_parked()
            return True
        # There are steps, but no complete sample.
        limiter.take_back()
        self.give_back(batch)
        self._receive_episodes(POLL_S / 10)
        if was_full:
            limiter.skip_batches()
        elif limiter.is_deadlocked(self._store.topology.group_rows):
            self._fruitless += 1
            if self._fruitless > _MOST_FRUITLESS:
                self._end_deadlock()
        return False

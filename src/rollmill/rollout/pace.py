"""When a group may take its next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from rollmill.rollout.hosted_group import HostedGroup
from rollmill.storage.replay import ReplayStore


class Pace(Protocol):
    """Lets the groups of one rollout worker step, or parks them."""

    @property
    def num_parked(self) -> int:
        """How many groups are parked."""
        ...

    def admit(self, group: HostedGroup) -> bool:
        """Whether the group may step now; otherwise it is parked."""
        ...

    def resume(self) -> Iterable[HostedGroup]:
        """Take out the parked groups that may step now."""
        ...


class UnlimitedPace:
    """Every group may step at any time."""

    num_parked = 0

    def admit(self, group: HostedGroup) -> bool:
        """Every group may step."""
        return True

    def resume(self) -> Iterable[HostedGroup]:
        """No group is parked."""
        return ()


class RateLimitedPace:
    """Parks groups while the replay's rate limiter allows no steps, until a learner has drawn.

    Args:
        store: The replay.
        worker: Which rollout worker this is.
    """

    def __init__(self, store: ReplayStore, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._limiter = store.limiter
        self._rows = store.topology.group_rows
        self._parked: deque[HostedGroup] = deque()

    @property
    def num_parked(self) -> int:
        """How many groups are parked."""
        return len(self._parked)

    def admit(self, group: HostedGroup) -> bool:
        """Whether the group may step now; if so, its steps are counted as under way."""
        if not self._parked and self._limiter.try_reserve(self._rows):
            return True
        self._parked.append(group)
        self._store.park(group.index)
        return False

    def resume(self) -> Iterable[HostedGroup]:
        """Take out the parked groups that may step now, first in, first out.

        The wish to be woken is published before the limiter is looked at, so that no wake-up is missed.
        """
        if not self._parked:
            return ()
        resumed = []
        self._store.set_parked(self._worker, True)
        while self._parked and self._limiter.try_reserve(self._rows):
            group = self._parked.popleft()
            self._store.group_is_parked[group.index] = False
            resumed.append(group)
        if not self._parked:
            self._store.set_parked(self._worker, False)
        return resumed

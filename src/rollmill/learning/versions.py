"""Which versions of the weights there are: the newest ones, or exactly one for each iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.collective import Collective
from rollmill.learning.in_flight import InFlight, PastVersion
from rollmill.learning.progress import Progress
from rollmill.learning.trajectories import Trajectories
from rollmill.storage.group_states import GroupStates
from rollmill.storage.weights import WeightStore

__all__ = ["ExactVersions", "NewestVersions", "Versions", "WrongVersionError"]

Moments = tuple[float, float]


class WrongVersionError(RuntimeError):
    """A sample was collected by another version of the policy than its iteration asks for: a defect of ours."""


class Versions(Protocol):
    """How versions are numbered, when they are published, and what a checkpoint holds of them."""

    def number(self, progress: Progress) -> int:
        """The version of the present weights."""
        ...

    def is_due(self, version: int, published: int) -> bool:
        """Whether to publish after an SGD step in the middle of a batch."""
        ...

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Takes note of a version that was published.

        Args:
            version: Its number.
            weights: uint8, as published.
            moments: Mean and deviation of the returns that its values are in units of.
        """
        ...

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """Mean and deviation of the returns that a batch's values are in units of; called in the loader's thread."""
        ...

    def check(self, batch: Trajectories, version: int) -> None:
        """Checks that a batch may be learned from at this version."""
        ...

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """What a checkpoint needs to resume from here; None where a run cannot resume.

        Args:
            progress: How far the run is.
            can_resume: Whether this rank has left nothing half done.
            is_failing: Whether this rank alone calls, because it is failing; else all ranks do.
        """
        ...

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Takes over what :meth:`pack` gave.

        Raises:
            ValueError: It is of another regime, or of another iteration than the groups resume from.
        """
        ...

    def saved(self, progress: Progress) -> None:
        """Takes note of a checkpoint that was written."""
        ...


class NewestVersions:
    """Version n is what n SGD steps have made; policy workers take the newest. See :class:`Versions`.

    Args:
        publish_every: SGD steps from one version that is published to the next.
    """

    def __init__(self, publish_every: int) -> None:
        self._publish_every = publish_every

    def number(self, progress: Progress) -> int:
        """SGD steps."""
        return progress.sgd_steps

    def is_due(self, version: int, published: int) -> bool:
        """Every ``publish_every`` SGD steps."""
        return version - published >= self._publish_every

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Nothing has to be remembered."""

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """The newest."""
        return newest

    def check(self, batch: Trajectories, version: int) -> None:
        """Every version may be learned from."""

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """Nothing is needed."""
        return {}

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Nothing is needed."""

    def saved(self, progress: Progress) -> None:
        """Nothing has to be remembered."""


class ExactVersions:
    """Version i is what i iterations have made; iteration i learns from version max(0, i - lag). See :class:`Versions`.

    Args:
        num_versions: How many may be acting at once: the lag and one.
        num_groups: Groups of this rank.
        states: Where groups leave what they need to resume.
        first_iteration: Where the run starts or resumes.
        collective: The ranks, each with groups of its own.
    """

    def __init__(
        self, *, num_versions: int, num_groups: int, states: GroupStates, first_iteration: int, collective: Collective
    ) -> None:
        self._num_versions = num_versions
        self._num_groups = num_groups
        self._states = states
        self._first_iteration = first_iteration
        self._collective = collective
        # The versions that groups may act by, the present one last.
        self._versions: list[PastVersion] = []
        self._moments: dict[int, Moments] = {}

    def number(self, progress: Progress) -> int:
        """Iterations."""
        return progress.batches

    def is_due(self, version: int, published: int) -> bool:
        """Never: an iteration is published as a whole."""
        return False

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Remembers the versions that groups may still act by."""
        self._versions = [*self._versions, PastVersion(version, weights.copy(), moments)][-self._num_versions :]
        # Replaced as a whole: the loader's thread reads it meanwhile.
        self._moments = {past.version: past.moments for past in self._versions}

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """Those of the version that acted: how far the learner is by now depends on time."""
        return self._moments[int(batch.arrays["policy_version"][0, 0])]

    def check(self, batch: Trajectories, version: int) -> None:
        """All samples must be of the version that this iteration asks for.

        Raises:
            WrongVersionError: One is not.
        """
        wanted = max(0, version - (self._num_versions - 1))
        versions = batch.arrays["policy_version"]
        if not (versions == wanted).all():
            found = sorted(set(versions.ravel().tolist()))
            raise WrongVersionError(
                f"iteration {version} learns from samples of version {wanted}, but was given versions {found}"
            )

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """The groups' states, where they have left them at this version; None between two checkpoints."""
        if is_failing:
            return None
        groups = [] if not progress.batches else self._states.read_packed(progress.batches, self._num_groups)
        of_ranks = self._collective.gather(groups if can_resume else None)
        if any(states is None for states in of_ranks):
            return None
        all_groups = [state for states in of_ranks for state in states or ()]
        return {"in_flight": InFlight(progress.batches, self._versions[:-1], all_groups).pack()}

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Publishes the older versions again.

        Raises:
            ValueError: It is of another regime, or of another iteration than the groups resume from.
        """
        in_flight = InFlight.unpack(state)
        if in_flight.iteration != self._first_iteration:
            raise ValueError(
                f"it is of iteration {in_flight.iteration}, but the groups resume from {self._first_iteration}"
            )
        for past in in_flight.versions:
            weights.publish(past.version, past.weights)
            self.published(*past)

    def saved(self, progress: Progress) -> None:
        """Removes the states of earlier iterations."""
        self._states.remove_until(progress.batches)

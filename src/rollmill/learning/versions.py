"""Numbering of weight versions: the newest, or exactly one for each iteration."""

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

Moments = tuple[float, float]


class WrongVersionError(RuntimeError):
    """A sample's policy version is not the one of its iteration: a bug in Rollmill."""


class Versions(Protocol):
    """Numbering, publication and checkpoint state of versions."""

    def number(self, progress: Progress) -> int:
        """Return the version of the current weights."""
        ...

    def is_due(self, version: int, published: int) -> bool:
        """Whether to publish after an SGD step in the middle of a batch."""
        ...

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Record a published version.

        Args:
            version: The version's number.
            weights: uint8, as published.
            moments: Mean and standard deviation that its values are normalised with.
        """
        ...

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """Return the mean and deviation of a batch's normalised values; called in the loader's thread."""
        ...

    def check(self, batch: Trajectories, version: int) -> None:
        """Check that a batch may be learned from at this version."""
        ...

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """Return the state for a checkpoint; None if a run cannot resume from it.

        Args:
            progress: The run's progress.
            can_resume: Whether this rank has no half-done work.
            is_failing: Whether only this rank calls, because it is failing; otherwise all ranks call.
        """
        ...

    def check_saved(self, state: Mapping[str, Any]) -> None:
        """Check that a result of :meth:`pack` can be restored.

        Raises:
            ValueError: It belongs to another regime, or to another iteration than the groups' states.
        """
        ...

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Restore the result of :meth:`pack`, which :meth:`check_saved` accepts."""
        ...

    def saved(self, progress: Progress) -> None:
        """Record that a checkpoint was written."""
        ...


class NewestVersions:
    """Version n is the result of n SGD steps and replacements; policy workers use the newest. See :class:`Versions`.

    Args:
        publish_every: SGD steps between published versions.
    """

    def __init__(self, publish_every: int) -> None:
        self._publish_every = publish_every

    def number(self, progress: Progress) -> int:
        """Return the number of SGD steps, and of replacements by another policy's weights."""
        return progress.sgd_steps + progress.generation

    def is_due(self, version: int, published: int) -> bool:
        """True every ``publish_every`` SGD steps."""
        return version - published >= self._publish_every

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Do nothing."""

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """Return the newest."""
        return newest

    def check(self, batch: Trajectories, version: int) -> None:
        """Do nothing: every version is allowed."""

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """Return an empty state."""
        return {}

    def check_saved(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Do nothing."""

    def saved(self, progress: Progress) -> None:
        """Do nothing."""


class ExactVersions:
    """Version i is the result of i iterations; iteration i learns from version max(0, i - lag). See :class:`Versions`.

    Args:
        num_versions: Versions that may act at once: lag + 1.
        num_groups: Groups of this rank.
        states: The store of groups' states.
        first_iteration: Iteration at which the run starts or resumes.
        collective: The ranks, each with its own groups.
        keeps_groups: Whether this policy's checkpoints hold the groups' states: those of one policy do, the last that
            is saved, so that checkpoints of all policies exist where these do.
    """

    def __init__(
        self,
        *,
        num_versions: int,
        num_groups: int,
        states: GroupStates,
        first_iteration: int,
        collective: Collective,
        keeps_groups: bool = True,
    ) -> None:
        self._num_versions = num_versions
        self._num_groups = num_groups
        self._states = states
        self._first_iteration = first_iteration
        self._collective = collective
        self._keeps_groups = keeps_groups
        self._packed_at: int | None = None
        # The versions that groups may use, the current one last.
        self._versions: list[PastVersion] = []
        self._moments: dict[int, Moments] = {}

    def number(self, progress: Progress) -> int:
        """Return the number of iterations."""
        return progress.batches

    def is_due(self, version: int, published: int) -> bool:
        """Return False: only complete iterations are published."""
        return False

    def published(self, version: int, weights: NDArray[np.uint8], moments: Moments) -> None:
        """Keep the versions that groups may still use."""
        self._versions = [*self._versions, PastVersion(version, weights.copy(), moments)][-self._num_versions :]
        # Replaced atomically, because the loader's thread reads it.
        self._moments = {past.version: past.moments for past in self._versions}

    def moments_of(self, batch: Trajectories, newest: Moments) -> Moments:
        """Return those of the batch's version, because the newest version depends on timing."""
        versions = batch.versions
        return self._moments[int(versions[0])] if len(versions) else newest

    def check(self, batch: Trajectories, version: int) -> None:
        """Check that all samples have the version of this iteration.

        Raises:
            WrongVersionError: A sample has another version.
        """
        wanted = max(0, version - (self._num_versions - 1))
        versions = batch.versions
        if not (versions == wanted).all():
            found = sorted(set(versions.tolist()))
            raise WrongVersionError(
                f"iteration {version} learns from samples of version {wanted}, but was given versions {found}"
            )

    def pack(self, progress: Progress, *, can_resume: bool, is_failing: bool) -> dict[str, Any] | None:
        """Return the groups' states at this version; None between two checkpoints."""
        # After a stop between the saves of two policies, the first one saves the same iteration again at the end.
        if is_failing or (progress.batches == self._packed_at and not self._keeps_groups):
            return None
        groups = [] if not progress.batches else self._states.read_packed(progress.batches, self._num_groups)
        of_ranks = self._collective.gather(groups if can_resume else None)
        if any(states is None for states in of_ranks):
            return None
        self._packed_at = progress.batches
        all_groups = [state for states in of_ranks for state in states or ()] if self._keeps_groups else []
        return {"in_flight": InFlight(progress.batches, self._versions[:-1], all_groups).pack()}

    def check_saved(self, state: Mapping[str, Any]) -> None:
        """Check regime and iteration.

        Raises:
            ValueError: It belongs to another regime, or to another iteration than the groups' states.
        """
        iteration = InFlight.iteration_of(state)
        if iteration != self._first_iteration:
            raise ValueError(f"it belongs to iteration {iteration}, but the groups resume from {self._first_iteration}")

    def restore(self, state: Mapping[str, Any], weights: WeightStore) -> None:
        """Publish the older versions again.

        Raises:
            ValueError: They are of a network with other tensors.
        """
        for past in InFlight.unpack(state).versions:
            if past.weights.nbytes != weights.nbytes:
                raise ValueError(
                    "its older versions of the network have another size, because several tasks had one normaliser "
                    "when it was written; start a new run from it: --init-from RUN_DIR --init-skip normaliser"
                )
            weights.publish(past.version, past.weights)
            self.published(*past)

    def saved(self, progress: Progress) -> None:
        """Remove the states of earlier iterations."""
        if self._keeps_groups:
            self._states.remove_until(progress.batches)

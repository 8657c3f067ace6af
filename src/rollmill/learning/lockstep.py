"""The learner in lockstep: iteration i learns from what version max(0, i - lag) collected, and from nothing else.

Iteration i's batch is the i-th slot of every group, in the order of the groups, whenever they came. Its weights are
published once, as version i + 1, before the batch's slots are given back: that a group has a free slot then says that
the version it is to act by is there. Nothing here is measured, and nothing depends on when anything happened.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.batches import Assembler, Batch, IterationAssembler
from rollmill.learning.fast_path import FastPath
from rollmill.learning.learner import Learner
from rollmill.learning.objective import learns_in_time
from rollmill.learning.settled import settled_fast_path
from rollmill.specs import EnvSpec

__all__ = ["LockstepLearner", "WrongVersionError"]


class WrongVersionError(RuntimeError):
    """A sample was collected by another version of the policy than its iteration asks for: a defect of ours."""


class LockstepLearner(Learner):
    """Learns from whole iterations, in order; :class:`rollmill.learning.learner.Learner` has the arguments.

    ``updates`` counts iterations; a version is how many of them its weights have seen.
    """

    _moments_of_version: dict[int, tuple[float, float]]

    @property
    def version(self) -> int:
        """What the present weights are published as."""
        return self.updates

    @property
    def _num_versions(self) -> int:
        """How many versions may be acting at once: the lag and one."""
        return self._store.topology.slots_per_group

    def _choose_fast_path(self, spec: EnvSpec) -> FastPath:
        return settled_fast_path(self._model, spec, self._config, in_time=learns_in_time(self._model, self._config))

    def _make_assembler(self) -> Assembler:
        return IterationAssembler(self._store)

    def _moments_of(self, batch: Batch) -> tuple[float, float]:
        # Not the present ones: how far the learner has come while this batch is prepared is a matter of time.
        return self._moments_of_version[int(batch.arrays["policy_version"][0, 0])]

    def _admit(self, batch: Batch) -> NDArray[np.bool_]:
        """Which samples count: those that are valid. All must be of the version that this iteration asks for."""
        wanted = max(0, self.version - (self._num_versions - 1))
        versions = batch.arrays["policy_version"]
        if not (versions == wanted).all():
            found = sorted(set(versions.ravel().tolist()))
            raise WrongVersionError(
                f"iteration {self.version} learns from samples of version {wanted}, but was given versions {found}"
            )
        return super()._admit(batch)

    def _after_step(self) -> None:
        self.sgd_steps += 1
        self._ledger.add(1, 1)

    def _publish(self) -> None:
        moments = self._model.value_moments()
        known = getattr(self, "_moments_of_version", {})
        # Replaced as a whole: the loader's thread reads it meanwhile.
        oldest = self.version - self._num_versions
        self._moments_of_version = {v: m for v, m in known.items() if v > oldest} | {self.version: moments}
        super()._publish()

"""The learner in lockstep: iteration i learns from what version max(0, i - lag) collected, and from nothing else.

Iteration i's batch is the i-th slot of every group, in the order of the groups, whenever they came. Its weights are
published once, as version i + 1, before the batch's slots are given back: that a group has a free slot then says that
the version it is to act by is there. Nothing here is measured, and nothing depends on when anything happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.learning.batches import Assembler, Batch, IterationAssembler
from rollmill.learning.fast_path import FastPath
from rollmill.learning.learner import Learner
from rollmill.learning.objective import learns_in_time
from rollmill.learning.report import LearnerReport
from rollmill.learning.settled import settled_fast_path
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.runtime.plain_data import MalformedMessageError
from rollmill.runtime.signatures import sign, verify
from rollmill.runtime.signed_files import require_trust
from rollmill.specs import EnvSpec
from rollmill.storage.group_states import GroupStates

__all__ = ["InFlight", "LockstepLearner", "WrongVersionError"]

_PURPOSE = "groups of a checkpoint"
_ROWS = 1000
_MOST_STEPS_BETWEEN_ROWS = 100_000


class WrongVersionError(RuntimeError):
    """A sample was collected by another version of the policy than its iteration asks for: a defect of ours."""


class InFlight(NamedTuple):
    """What a checkpoint holds of the samplers, so that a run goes on as if it had never been interrupted.

    Attributes:
        iteration: The one that groups are about to begin: the checkpoint's version.
        versions: Older versions that they will still act by, the oldest first: (version, weights, mean and deviation of
            the returns).
        groups: State of each group, packed; empty before the first iteration. They are pickles: see
            :meth:`require_trusted`.
        signature: Of the groups' states, by the user whose run wrote them.
    """

    iteration: int
    versions: Sequence[tuple[int, NDArray[np.uint8], tuple[float, float]]]
    groups: Sequence[bytes]
    signature: object = None

    def pack(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "iteration": self.iteration,
            "versions": [[v, torch.from_numpy(weights), list(moments)] for v, weights, moments in self.versions],
            "groups": [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in self.groups],
            "signature": sign(_PURPOSE, self.groups),
        }

    def require_trusted(self, path: Path, *, trust: bool) -> None:
        """Raise unless the groups' states may be unpickled.

        Args:
            path: The checkpoint that holds them.
            trust: Whether the user said to trust the run.

        Raises:
            UntrustedError: They may not: a run of another user wrote them, or they were changed.
        """
        code = "it holds pickled environments" if self.groups else ""
        require_trust(path, verify(_PURPOSE, self.groups, self.signature), code, trust=trust)

    def check_complete(self, num_groups: int) -> None:
        """Raise unless there is a state of every group, so that groups find none but those of this checkpoint.

        Args:
            num_groups: Of the run, on all ranks.

        Raises:
            MalformedMessageError: There are fewer or more, or the iteration is no number.
        """
        if type(self.iteration) is not int or self.iteration < 0:  # It becomes a part of a path.
            raise MalformedMessageError(
                f"the checkpoint's iteration is {self.iteration!r}, allowed are whole numbers from 0: it is damaged or "
                "was changed; restore it, or begin a new run"
            )
        wanted = num_groups if self.iteration else 0
        if len(self.groups) != wanted:
            raise MalformedMessageError(
                f"the checkpoint holds the states of {len(self.groups)} groups, but at iteration {self.iteration} this "
                f"run has those of {wanted}: it is damaged or was changed; restore it, or begin a new run"
            )

    @classmethod
    def unpack(cls, state: Mapping[str, Any]) -> InFlight:
        """From a checkpoint's state.

        Raises:
            ValueError: The checkpoint is of another regime.
        """
        packed = state.get("in_flight")
        if packed is None:
            raise ValueError("it holds no groups to go on with: the run that wrote it was not in lockstep")
        return cls(
            packed["iteration"],
            [(v, weights.numpy(), (moments[0], moments[1])) for v, weights, moments in packed["versions"]],
            [group.numpy().tobytes() for group in packed["groups"]],
            packed.get("signature"),
        )


class LockstepLearner(Learner):
    """Learns from whole iterations, in order.

    Each batch is an iteration; a version is how many of them its weights have seen.

    Args:
        *args: See :class:`rollmill.learning.learner.Learner`.
        states: Where groups leave what they need to go on.
        first_iteration: Where the run begins, or goes on.
        save_every: Iterations from one checkpoint to the next; 0 for none but the last.
        **kwargs: See :class:`rollmill.learning.learner.Learner`.
    """

    def __init__(self, *args: Any, states: GroupStates, first_iteration: int, save_every: int, **kwargs: Any) -> None:
        """As a learner's; of a run that goes on, the older versions that groups still act by are published, too."""
        self._states = states
        self._first_iteration = first_iteration
        self._save_every = save_every
        self._saved_at = first_iteration
        # The versions that groups may act by, the present one last.
        self._versions: list[tuple[int, NDArray[np.uint8], tuple[float, float]]] = []
        self._moments_of_version: dict[int, tuple[float, float]] = {}
        super().__init__(*args, **kwargs)

    @property
    def version(self) -> int:
        """What the present weights are published as."""
        return self.batches

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
        self._ledger.add(LearnerCounter.SGD_STEPS, 1)
        self._ledger.enter(LearnerPhase.LEARNING)  # Again after each step: a sign of life.

    def _publish(self) -> None:
        moments = self._model.value_moments()
        super()._publish()
        self._remember(self.version, self._flat.bytes.copy(), moments)

    def _remember(self, version: int, weights: NDArray[np.uint8], moments: tuple[float, float]) -> None:
        self._versions = [*self._versions, (version, weights, moments)][-self._num_versions :]
        # Replaced as a whole: the loader's thread reads it meanwhile.
        self._moments_of_version = {v: m for v, _, m in self._versions}

    def _first_report(self) -> LearnerReport:
        # A resumed run has this row: there is one before every checkpoint.
        return self._report() if self._has_new_row else self._progress()

    def _report_if_due(self) -> None:
        """Rows at certain iterations, whatever the time, so that two runs have the same ones."""
        is_due = self._is_milestone or self.batches % self._row_every == 0 or self._is_save_due()
        if is_due and self._has_new_row:
            self._send(self._report())
        elif self._is_time_to_report():
            self._send(self._progress())

    @property
    def _row_every(self) -> int:
        """Iterations from one row to the next: a thousand rows in most runs, and enough in endless ones."""
        steps = min(self._total_steps / _ROWS, _MOST_STEPS_BETWEEN_ROWS)
        return max(1, int(steps / self._config.batch_size))

    def _is_save_due(self) -> bool:
        return bool(self._save_every) and self.batches % self._save_every == 0 and self.batches > self._saved_at

    def _save(self) -> Path | None:
        path = super()._save()
        self._saved_at = self.batches
        self._states.remove_until(self.batches)
        return path

    def _pack_in_flight(self) -> dict[str, Any] | None:
        """The groups' states, where they have left them at this version; None between two checkpoints."""
        groups = [] if not self.batches else self._states.read_packed(self.batches, self._store.topology.num_groups)
        of_ranks = self._collective.gather(groups if self._is_between_updates else None)
        if any(states is None for states in of_ranks):
            return None
        all_groups = [state for states in of_ranks for state in states or ()]
        sums = self._updater.previous_sums
        return {
            "in_flight": InFlight(self.batches, self._versions[:-1], all_groups).pack(),
            "advantage_sums": None if sums is None else sums.tolist(),
        }

    def _in_flight_after_failure(self) -> dict[str, Any] | None:
        return None

    def _take_over(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Learner`.

        Raises:
            ValueError: It is another checkpoint than the one that the groups go on from.
        """
        in_flight = InFlight.unpack(state)
        if in_flight.iteration != self._first_iteration:
            raise ValueError(
                f"it is of iteration {in_flight.iteration}, but the groups go on from {self._first_iteration}"
            )
        super()._take_over(state)
        self._row_at = (self.batches, self.agent_steps)
        if (sums := state["advantage_sums"]) is not None:
            self._updater.previous_sums = torch.tensor(sums, dtype=torch.float64, device=self._device)
        for version, weights, moments in in_flight.versions:
            self._weights.publish(version, weights)
            self._remember(version, weights, moments)

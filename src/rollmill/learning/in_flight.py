"""The samplers' part of a lockstep checkpoint, with which a resumed run is identical to an uninterrupted one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.runtime.plain_data import MalformedMessageError
from rollmill.runtime.signatures import sign, verify
from rollmill.runtime.signed_files import require_trust

_PURPOSE = "groups of a checkpoint"


class PastVersion(NamedTuple):
    """A policy version that groups may still use.

    Attributes:
        version: The version's number.
        weights: uint8, as published.
        moments: Mean and standard deviation that its values are normalised with.
    """

    version: int
    weights: NDArray[np.uint8]
    moments: tuple[float, float]


class InFlight(NamedTuple):
    """The samplers' part of a checkpoint.

    Attributes:
        iteration: The iteration that groups start next, equal to the checkpoint's version.
        versions: Older versions that groups will still use, oldest first.
        groups: State of each group, packed; empty before the first iteration. Contains pickles: see
            :meth:`require_trusted`.
        signature: Signature of the groups' states by the user whose run wrote them.
    """

    iteration: int
    versions: Sequence[PastVersion]
    groups: Sequence[bytes]
    signature: object = None

    def pack(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "iteration": self.iteration,
            "versions": [[v, torch.from_numpy(weights), list(moments)] for v, weights, moments in self.versions],
            "groups": [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in self.groups],
            "signature": sign(_PURPOSE, self.groups),
        }

    def require_trusted(self, path: Path, *, trust: bool) -> None:
        """Raise unless the groups' states may be unpickled.

        Args:
            path: The checkpoint's path.
            trust: Whether the user trusts the run.

        Raises:
            UntrustedError: Another user's run wrote them, or they were changed.
        """
        code = "it holds pickled environments" if self.groups else ""
        require_trust(path, verify(_PURPOSE, self.groups, self.signature), code, trust=trust)

    def check_complete(self, num_groups: int) -> None:
        """Raise unless there is exactly one state for every group.

        Args:
            num_groups: Groups of the run, on all ranks.

        Raises:
            MalformedMessageError: The number of states is wrong, or the iteration is not a number.
        """
        if type(self.iteration) is not int or self.iteration < 0:  # it becomes part of a path
            raise MalformedMessageError(
                f"the checkpoint's iteration is {self.iteration!r}, allowed are integers from 0: it is damaged or "
                "was changed; restore it, or start a new run"
            )
        wanted = num_groups if self.iteration else 0
        if len(self.groups) != wanted:
            raise MalformedMessageError(
                f"the checkpoint has the states of {len(self.groups)} groups, but at iteration {self.iteration} this "
                f"run needs {wanted}: it is damaged or was changed; restore it, or start a new run"
            )

    @staticmethod
    def iteration_of(state: Mapping[str, Any]) -> int:
        """Return the iteration of a checkpoint's state.

        Raises:
            ValueError: The checkpoint belongs to another regime.
        """
        iteration: int = _packed(state)["iteration"]
        return iteration

    @classmethod
    def unpack(cls, state: Mapping[str, Any]) -> InFlight:
        """Restore from a checkpoint's state.

        Raises:
            ValueError: The checkpoint belongs to another regime.
        """
        packed = _packed(state)
        return cls(
            packed["iteration"],
            [PastVersion(v, weights.numpy(), (moments[0], moments[1])) for v, weights, moments in packed["versions"]],
            [group.numpy().tobytes() for group in packed["groups"]],
            packed.get("signature"),
        )


def _packed(state: Mapping[str, Any]) -> Mapping[str, Any]:
    packed = state.get("in_flight")
    if packed is None:
        raise ValueError("it has no states of groups: the run that wrote it was not in lockstep")
    found: Mapping[str, Any] = packed
    return found

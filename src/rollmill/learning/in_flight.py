"""What a checkpoint in lockstep holds of the samplers, so that a run resumes as if it had never been interrupted."""

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

__all__ = ["InFlight", "PastVersion"]

_PURPOSE = "groups of a checkpoint"


class PastVersion(NamedTuple):
    """A version of the policy that groups may act by.

    Attributes:
        version: Its number.
        weights: uint8, as published.
        moments: Mean and deviation of the returns that its values are in units of.
    """

    version: int
    weights: NDArray[np.uint8]
    moments: tuple[float, float]


class InFlight(NamedTuple):
    """The samplers' part of a checkpoint.

    Attributes:
        iteration: The one that groups are about to begin: the checkpoint's version.
        versions: Older versions that they will still act by, the oldest first.
        groups: State of each group, packed; empty before the first iteration. They are pickles: see
            :meth:`require_trusted`.
        signature: Of the groups' states, by the user whose run wrote them.
    """

    iteration: int
    versions: Sequence[PastVersion]
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
            [PastVersion(v, weights.numpy(), (moments[0], moments[1])) for v, weights, moments in packed["versions"]],
            [group.numpy().tobytes() for group in packed["groups"]],
            packed.get("signature"),
        )

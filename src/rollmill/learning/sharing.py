"""Shared memory of parallel learners of an off-policy algorithm: gradients to the server, networks to learners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.algorithms.base import Algorithm
from rollmill.learning.update import Update
from rollmill.models.flat_state import FlatState, flat_nbytes, in_wire_format
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore

# Weight rings in addition to the acting network's.
_ONLINE, _TARGETS = "online", "targets"


@dataclass(frozen=True)
class SharedSizes:
    """Sizes of the shared memory of parallel learners.

    Attributes:
        gradient: Number of float32 values in all objectives' gradients.
        online: Bytes of the tensors that SGD steps change.
        targets: Bytes of the target networks.
    """

    gradient: int
    online: int
    targets: int

    @property
    def rings(self) -> dict[str, int]:
        """Weight ring -> bytes."""
        return {_ONLINE: self.online} | ({_TARGETS: self.targets} if self.targets else {})


def shared_sizes(algorithm: Algorithm) -> SharedSizes:
    """Compute the sizes for an algorithm.

    Raises:
        ValueError: Two objectives share a parameter.
    """
    objectives = algorithm.trained_objectives()
    counts = Counter(id(p) for objective in objectives for p in objective.parameters)
    if counts and max(counts.values()) > 1:
        raise ValueError(
            f"learner.num_learners is more than 1, but objectives of {type(algorithm).__name__} share parameters, "
            "whose gradients parallel learners cannot tell apart: use one learner, or give each parameter to one "
            "objective"
        )
    online, targets = _parts(algorithm)
    gradient = sum(p.numel() for objective in objectives for p in objective.parameters)
    return SharedSizes(gradient, flat_nbytes(online), flat_nbytes(targets) if list(targets.parameters()) else 0)


def _parts(algorithm: Algorithm) -> tuple[nn.Module, nn.Module]:
    """Return the tensors that SGD steps change, and the targets, as modules that share them."""
    targets = nn.ModuleList([target for _, target in algorithm.target_pairs()])
    of_targets = {id(t) for t in (*targets.parameters(), *targets.buffers())}
    online = nn.Module()
    for index, tensor in enumerate(t for t in algorithm.parameters() if id(t) not in of_targets):
        online.register_parameter(f"p{index}", tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor))
    persistent = set(algorithm.state_dict(keep_vars=True))
    buffers = [b for name, b in algorithm.named_buffers() if name in persistent and id(b) not in of_targets]
    for index, buffer in enumerate(buffers):
        online.register_buffer(f"b{index}", buffer)
    return online, targets


class NetworkRing:
    """Transfers all networks of an algorithm from the server to the learners.

    Args:
        arrays: Shared memory with :attr:`SharedSizes.rings`.
        algorithm: The algorithm; on the CPU its tensors become views of the transferred bytes.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], algorithm: Algorithm) -> None:
        online, targets = _parts(algorithm)
        alias = next(online.parameters()).device.type == "cpu"
        self._rings = [(WeightStore(arrays, ring=_ONLINE), FlatState(online, alias=alias))]
        if list(targets.parameters()):
            self._rings.append((WeightStore(arrays, ring=_TARGETS), FlatState(targets, alias=alias)))
        self._versions = [NOT_PUBLISHED] * len(self._rings)

    @property
    def newest(self) -> int:
        """Newest readable version of the online networks."""
        return self._rings[0][0].newest

    def publish(self, version: int, *, targets: bool) -> None:
        """Publish the current networks; targets only if they have changed."""
        # Targets first, so that readers of this online version find targets at least as new.
        for store, flat in reversed(self._rings if targets else self._rings[:1]):
            flat.pack()
            store.publish(version, flat.bytes)

    def read(self) -> int:
        """Load the newest networks; returns their version."""
        for index, (store, flat) in enumerate(self._rings):
            version = store.read_newest(flat.bytes, unless=self._versions[index])
            if version != self._versions[index]:
                flat.unpack()
                self._versions[index] = version
        return self._versions[0]


class FlatGradients:
    """A flat float32 array with the gradients of all objectives.

    Args:
        update: The update with the objectives.
        values: float32 ``[size]``, shared memory.
    """

    def __init__(self, update: Update, values: NDArray[np.float32]) -> None:
        flat = torch.from_numpy(values)
        self._parameters: list[Sequence[nn.Parameter]] = [objective.parameters for objective in update.objectives]
        self._views: list[list[Tensor]] = []
        offset = 0
        for parameters in self._parameters:
            views = []
            for parameter in parameters:
                size = parameter.numel()
                views.append(in_wire_format(flat[offset : offset + size], parameter.shape))
                offset += size
            self._views.append(views)

    def put(self, index: int) -> None:
        """Copy an objective's gradients from its parameters into the array."""
        missing = [view for p, view in zip(self._parameters[index], self._views[index], strict=True) if p.grad is None]
        if missing:
            torch._foreach_zero_(missing)
        pairs = [(view, p.grad) for p, view in zip(self._parameters[index], self._views[index], strict=True)]
        present = [(view, grad) for view, grad in pairs if grad is not None]
        torch._foreach_copy_([view for view, _ in present], [grad for _, grad in present])

    def take(self, index: int) -> None:
        """Set the gradients of an objective's parameters from the array; on a CPU mostly without a copy."""
        for parameter, view in zip(self._parameters[index], self._views[index], strict=True):
            # In the parameter's memory format, because fused optimisers read both in storage order.
            is_alike = parameter.device.type == "cpu" and view.stride() == parameter.stride()
            parameter.grad = view if is_alike else torch.empty_like(parameter).copy_(view, non_blocking=True)

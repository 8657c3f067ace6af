"""Choice of a policy worker's weights: the newest, or exactly the version of the groups' iteration."""

from __future__ import annotations

import copy
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import lower_weights
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore

__all__ = ["ActingAlgorithm", "ActingWeights", "ExactWeights", "NewestWeights"]

AnAlgorithm = TypeVar("AnAlgorithm", bound=Algorithm)


class ActingAlgorithm(Generic[AnAlgorithm]):
    """An algorithm that acts, the buffer of its weights, and their version.

    Args:
        algorithm: The algorithm, on its device and in evaluation mode.
        is_lowered: Whether its weights are stored in bf16.

    Attributes:
        algorithm: As given.
        flat: The acting network's weights.
        version: Their version.
        is_on_policy: Whether the algorithm returns values; its actions are not checked.
    """

    def __init__(self, algorithm: AnAlgorithm, *, is_lowered: bool) -> None:
        self.algorithm = algorithm
        is_on_cpu = next(algorithm.parameters()).device.type == "cpu"
        self.flat = FlatState(algorithm.acting, alias=is_on_cpu)
        self.version = NOT_PUBLISHED
        self.is_on_policy = isinstance(algorithm, OnPolicyAlgorithm)
        if is_lowered:
            lower_weights(algorithm, torch.bfloat16)


class ActingWeights(Protocol[AnAlgorithm]):
    """Chooses the weights for a batch of groups.

    Attributes:
        first_version: Minimum version for the first batch.
    """

    first_version: int

    def await_first(self, timeout_s: float) -> bool:
        """Wait until the first version is published; False after the timeout."""
        ...

    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm[AnAlgorithm]:
        """Return the algorithm for these groups, int64 ``[n]``, with its weights loaded."""
        ...


class NewestWeights(Generic[AnAlgorithm]):
    """The newest version. See :class:`ActingWeights`.

    Args:
        weights: The store that the learner publishes in.
        algorithm: A copy of the algorithm, on its device.
        is_lowered: Whether weights are stored in bf16.
    """

    first_version = 0

    def __init__(self, weights: WeightStore, algorithm: AnAlgorithm, *, is_lowered: bool) -> None:
        self._weights = weights
        self._acting = ActingAlgorithm(algorithm, is_lowered=is_lowered)

    def await_first(self, timeout_s: float) -> bool:
        """See :class:`ActingWeights`."""
        return self._weights.wait_for(self.first_version, timeout_s=timeout_s)

    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm[AnAlgorithm]:
        """Return the algorithm, with newer weights if there are any."""
        acting = self._acting
        version = self._weights.read_newest(acting.flat.bytes, unless=acting.version)
        if version != acting.version:
            acting.flat.unpack()
            acting.version = version
        return acting


class ExactWeights(Generic[AnAlgorithm]):
    """Version max(0, i - lag) for groups whose slots belong to iteration i. See :class:`ActingWeights`.

    Groups of ``lag + 1`` iterations may be in flight at once, so there are ``lag + 1`` copies of the algorithm.

    Args:
        store: The slots; each group has ``lag + 1``.
        weights: The store that the learner publishes in; holds ``lag + 1`` versions.
        algorithm: A copy of the algorithm, on its device.
        is_lowered: Whether weights are stored in bf16.
        first_iteration: Iteration at which the run starts or resumes.
    """

    def __init__(
        self,
        store: SlotStore,
        weights: WeightStore,
        algorithm: AnAlgorithm,
        *,
        is_lowered: bool,
        first_iteration: int,
    ) -> None:
        self._store = store
        self._weights = weights
        self._lag = store.topology.slots_per_group - 1
        algorithms = [algorithm, *(_copy_of(algorithm) for _ in range(self._lag))]
        self._copies = [ActingAlgorithm(each, is_lowered=is_lowered) for each in algorithms]
        self.first_version = first_iteration

    def await_first(self, timeout_s: float) -> bool:
        """See :class:`ActingWeights`."""
        return self._weights.wait_for(self.first_version, timeout_s=timeout_s)

    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm[AnAlgorithm]:
        """Return the copy with the weights of the groups' iteration; they were published before it started."""
        iteration = int(self._store.group_iteration[groups[0]])
        version = max(0, iteration - self._lag)
        acting = self._copies[version % len(self._copies)]
        if acting.version != version:
            self._weights.read(version, acting.flat.bytes)
            acting.flat.unpack()
            acting.version = version
        return acting


def _copy_of(algorithm: AnAlgorithm) -> AnAlgorithm:
    """Copy an algorithm, and join the weights of recurrent layers again, which cuDNN takes as one block."""
    copied = copy.deepcopy(algorithm)
    for layer in copied.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters()
    return copied

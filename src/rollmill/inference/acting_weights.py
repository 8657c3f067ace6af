"""Choice of a policy worker's weights: the newest, or exactly the version of the groups' iteration."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import fold_pixels, lower_weights, needs_autocast
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore


class ActingAlgorithm:
    """An algorithm that acts, the buffer of its weights, and their version.

    Args:
        algorithm: The algorithm, on its device and in evaluation mode.
        is_lowered: Whether its weights are stored in bf16.
        explores: Whether it explores; else it takes the actions that it holds for the best.

    Attributes:
        algorithm: As given.
        explores: As given.
        flat: The acting network's weights.
        version: Their version.
        is_on_policy: Whether the algorithm returns values; its actions are not checked.
        chooses_by_distribution: Whether it explores by :meth:`rollmill.algorithms.on_policy.OnPolicyAlgorithm.choose`
            alone, so that its rows can be joined with those of others.
        needs_autocast: Whether passes in bf16 need autocast; else all of its weights are in that dtype already.
    """

    def __init__(self, algorithm: Algorithm, *, is_lowered: bool, explores: bool = True) -> None:
        self.algorithm = algorithm
        self.explores = explores
        is_on_cpu = next(algorithm.parameters()).device.type == "cpu"
        self.flat = FlatState(algorithm.acting, alias=is_on_cpu)
        self.version = NOT_PUBLISHED
        self.is_on_policy = isinstance(algorithm, OnPolicyAlgorithm)
        acts_as_usual = type(algorithm).act_with_state is OnPolicyAlgorithm.act_with_state
        self.chooses_by_distribution = explores and acts_as_usual
        self._is_lowered = is_lowered
        self.needs_autocast = True
        if is_lowered:
            lower_weights(algorithm.acting, torch.bfloat16)
            self.needs_autocast = needs_autocast(algorithm.acting)

    def unpack(self, version: int) -> None:
        """Load the weights that the buffer has, those of a version."""
        self.flat.unpack()
        if self._is_lowered:
            fold_pixels(self.algorithm.acting, torch.bfloat16)
        self.version = version


class ActingWeights(ABC):
    """Chooses the weights for a batch of groups.

    Args:
        weights: The store that the learner publishes in.
        first_version: Minimum version for the first batch.
    """

    def __init__(self, weights: WeightStore, first_version: int) -> None:
        self._weights = weights
        self._first_version = first_version

    def await_first(self, timeout_s: float) -> bool:
        """Wait until the first version is published; False after the timeout."""
        return self._weights.wait_for(self._first_version, timeout_s=timeout_s)

    @abstractmethod
    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm:
        """Return the algorithm for these groups, int64 ``[n]``, with its weights loaded."""


class NewestWeights(ActingWeights):
    """The newest version.

    Args:
        weights: The store that the learner publishes in.
        algorithm: A copy of the algorithm, on its device.
        is_lowered: Whether weights are stored in bf16.
    """

    def __init__(self, weights: WeightStore, algorithm: Algorithm, *, is_lowered: bool) -> None:
        super().__init__(weights, 0)
        self._acting = ActingAlgorithm(algorithm, is_lowered=is_lowered)

    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm:
        """Return the algorithm, with newer weights if there are any."""
        acting = self._acting
        version = self._weights.read_newest(acting.flat.bytes, unless=acting.version)
        if version != acting.version:
            acting.unpack(version)
        return acting


class ExactWeights(ActingWeights):
    """Version max(0, i - lag) for groups whose slots belong to iteration i.

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
        algorithm: Algorithm,
        *,
        is_lowered: bool,
        first_iteration: int,
    ) -> None:
        super().__init__(weights, first_iteration)
        self._store = store
        self._lag = store.topology.slots_per_group - 1
        algorithms = [algorithm, *(_copy_of(algorithm) for _ in range(self._lag))]
        self._copies = [ActingAlgorithm(each, is_lowered=is_lowered) for each in algorithms]

    def acting_for(self, groups: NDArray[np.int64]) -> ActingAlgorithm:
        """Return the copy with the weights of the groups' iteration; they were published before it started."""
        iteration = int(self._store.group_iteration[groups[0]])
        version = max(0, iteration - self._lag)
        acting = self._copies[version % len(self._copies)]
        if acting.version != version:
            self._weights.read(version, acting.flat.bytes)
            acting.unpack(version)
        return acting


def _copy_of(algorithm: Algorithm) -> Algorithm:
    """Copy an algorithm, and join the weights of recurrent layers again, which cuDNN takes as one block."""
    copied = copy.deepcopy(algorithm)
    for layer in copied.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters()
    return copied

"""Networks of past selves, with the weights that the bank holds."""

from __future__ import annotations

import copy

from rollmill.algorithms.base import Algorithm
from rollmill.inference.acting_weights import ActingAlgorithm
from rollmill.storage.bank import SnapshotBank

_NOT_READ = -1


class PastSelves:
    """A copy of the algorithm for each place of the bank that was met, loaded when its snapshot changes.

    Args:
        bank: The shared memory.
        algorithm: The algorithm, on its device and in evaluation mode; its weights are not used.
        is_lowered: Whether weights are stored in bf16.
    """

    def __init__(self, bank: SnapshotBank, algorithm: Algorithm, *, is_lowered: bool) -> None:
        self._bank = bank
        self._template = copy.deepcopy(algorithm)
        self._is_lowered = is_lowered
        self._copies: dict[int, ActingAlgorithm] = {}

    def acting_for(self, place: int) -> ActingAlgorithm:
        """Return the algorithm with the weights of a place; the place is not overwritten during a match."""
        acting = self._copies.get(place)
        if acting is None:
            acting = ActingAlgorithm(copy.deepcopy(self._template), is_lowered=self._is_lowered)
            acting.version = _NOT_READ
            self._copies[place] = acting
        generation = self._bank.read(place, acting.flat.bytes, unless=acting.version)
        if generation != acting.version:
            acting.unpack(generation)
        return acting

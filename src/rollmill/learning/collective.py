"""What data-parallel ranks exchange: sums of gradients, and a few small things that all have to know.

Every rank makes the same calls in the same order. Alone, each of them gives back what it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Alone", "Collective"]

Item = TypeVar("Item")
Dtype = TypeVar("Dtype", bound=np.generic)


class Collective(Protocol):
    """The ranks of a run, seen from one of them.

    Attributes:
        rank: Which one this is.
        world_size: How many there are.
    """

    rank: int
    world_size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, elementwise; of the same bits on every rank."""
        ...

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        """Replaces each parameter's gradient by the sum over the ranks, in the parameter's memory layout.

        A rank without a gradient counts as zeros. A parameter without a gradient on every rank keeps none, so that an
        optimiser skips it as it does with one rank.

        Args:
            parameters: The same on every rank.
            statistics: float32 ``[n]``, summed with them.

        Returns:
            The sum of the statistics.
        """
        ...

    def columns(self, array: NDArray[Dtype]) -> NDArray[Dtype]:
        """The arrays ``[T, N / W]`` of all ranks, side by side in the order of the ranks: ``[T, N]``."""
        ...

    def gather(self, item: Item) -> list[Item]:
        """What each rank gave, in their order: plain data, see :mod:`rollmill.runtime.plain_data`."""
        ...

    def broadcast(self, item: Item) -> Item:
        """What rank 0 gave: plain data, see :mod:`rollmill.runtime.plain_data`."""
        ...

    def close(self) -> None:
        """Leaves the others."""
        ...


class Alone:
    """One rank. See :class:`Collective`."""

    rank = 0
    world_size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """As given."""
        return tensor

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        """As given."""
        return statistics

    def columns(self, array: NDArray[Dtype]) -> NDArray[Dtype]:
        """As given."""
        return array

    def gather(self, item: Item) -> list[Item]:
        """As given."""
        return [item]

    def broadcast(self, item: Item) -> Item:
        """As given."""
        return item

    def close(self) -> None:
        """Nothing to leave."""

"""Communication between data-parallel ranks: sums of gradients, and small items of plain data.

Every rank makes the same calls in the same order. With one rank, each call returns its argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Item = TypeVar("Item")
Dtype = TypeVar("Dtype", bound=np.generic)


class Collective(Protocol):
    """The ranks of a run, seen from one of them.

    Attributes:
        rank: Index of this rank.
        world_size: Number of ranks.
    """

    rank: int
    world_size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the elementwise sum over the ranks; bitwise equal on every rank."""
        ...

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        """Replace each parameter's gradient by the sum over the ranks, in the parameter's memory layout.

        A missing gradient on one rank counts as zeros. A parameter without a gradient on every rank keeps none, so that
        an optimiser skips it as it does with one rank.

        Args:
            parameters: The same on every rank.
            statistics: float32 ``[n]``, summed with the gradients.

        Returns:
            The sum of the statistics.
        """
        ...

    def columns(self, array: NDArray[Dtype]) -> NDArray[Dtype]:
        """Concatenate the arrays ``[T, N / W]`` of all ranks, in rank order: ``[T, N]``."""
        ...

    def gather(self, item: Item) -> list[Item]:
        """Return each rank's item, in rank order: plain data, see :mod:`rollmill.runtime.plain_data`."""
        ...

    def broadcast(self, item: Item) -> Item:
        """Return rank 0's item: plain data, see :mod:`rollmill.runtime.plain_data`."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Alone:
    """A single rank. See :class:`Collective`."""

    rank = 0
    world_size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the argument."""
        return tensor

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        """Return the argument."""
        return statistics

    def columns(self, array: NDArray[Dtype]) -> NDArray[Dtype]:
        """Return the argument."""
        return array

    def gather(self, item: Item) -> list[Item]:
        """Return the argument in a list."""
        return [item]

    def broadcast(self, item: Item) -> Item:
        """Return the argument."""
        return item

    def close(self) -> None:
        """Do nothing."""

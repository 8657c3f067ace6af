"""Running mean and standard deviation, as buffers that are published with the weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.models.precision import wide

Sum = Callable[[Tensor], Tensor]
_EPSILON = 1e-8
# Of a part of a batch in float64: a whole batch of images would take gigabytes.
_PART_BYTES = 1 << 26


def only_own(tensor: Tensor) -> Tensor:
    """The sum over ranks where there is one."""
    return tensor


def _total(terms: Iterator[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)


def _of_task(values: Tensor, task: Tensor | None) -> Tensor:
    """Return values ``[tasks, *shape]`` of each sample's task, ``[..., *shape]``; the values without several tasks."""
    return values if task is None else values[task.argmax(-1)]


def _sum(rows: Tensor, task: Tensor | None) -> Tensor:
    """Return the sum of rows ``[n, *shape]``; with several tasks, of each task's rows, ``[tasks, *shape]``."""
    if task is None:
        return rows.sum(0)
    # Not index_add_, which adds in any order on a GPU: lockstep would not repeat.
    return (task.T @ rows.reshape(len(rows), math.prod(rows.shape[1:]))).view(-1, *rows.shape[1:])


class RunningMeanStd(nn.Module):
    """Mean and standard deviation of all samples so far, for each element; of several tasks, of each task's samples.

    Batches are merged by Chan, Golub and LeVeque's formula (1979, STAN-CS-79-773, equation 2.1) in float64, which
    neither loses small counts beside large ones nor cancels. ``shift`` and ``scale`` are derived in float32 at each
    update, so that using the statistics costs two small operations. No method waits for the device.

    Args:
        shape: Shape of one sample.
        tasks: Number of tasks; each of several has statistics of its own.

    Attributes:
        mean: float64 ``shape``, with several tasks ``[tasks, *shape]``; 0 before the first update.
        var: float64, likewise, population variance; 1 before the first update.
        count: float64 scalar, samples seen; with several tasks ``[tasks, 1, ...]``, as many axes as ``mean``.
        shift: float32, likewise, the mean.
        scale: float32, likewise, ``1 / sqrt(var + 1e-8)``.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], *, tasks: int = 1) -> None:
        super().__init__()
        self._shape = shape
        of_all, counts = ((tasks, *shape), (tasks, *[1] * len(shape))) if tasks > 1 else (shape, ())
        self.register_buffer("mean", torch.zeros(of_all, dtype=torch.float64))
        self.register_buffer("var", torch.ones(of_all, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(counts, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(of_all))
        self.register_buffer("scale", torch.ones(of_all))

    @torch.no_grad()
    def update(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        infinite_is_mean: bool = False,
        task: Tensor | None = None,
        /,
        *,
        sum_over_ranks: Sum = only_own,
    ) -> None:
        """Merge a batch.

        Args:
            x: ``[..., *shape]``, any number of leading axes and any dtype.
            valid: bool, with the same leading axes; False excludes a sample (which may be NaN). None includes all.
            infinite_is_mean: Whether infinite numbers count as the mean so far.
            task: float ``[..., tasks]``, one-hot, with the same leading axes; None without several tasks.
            sum_over_ranks: Sums a tensor over the ranks that merge their batches; every rank must call this.
        """
        rows = x.reshape(-1, *self._shape)
        kept = None if valid is None else valid.reshape(-1, *[1] * len(self._shape))
        chosen = None if task is None else task.reshape(-1, task.shape[-1]).double()
        if chosen is not None:
            counted = chosen if valid is None else torch.where(valid.reshape(-1, 1), chosen, 0.0)
            count = counted.sum(0).view(self.count.shape)
        elif kept is None:
            count = torch.full((), float(rows.shape[0]), dtype=torch.float64, device=rows.device)
        else:
            count = kept.sum().double()

        size = max(1, _PART_BYTES // (8 * max(1, math.prod(self._shape))))

        def made() -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
            for begin in range(0, max(1, len(rows)), size):
                cut = slice(begin, begin + size)
                part, is_kept = rows[cut], None if kept is None else kept[cut]
                of_task = None if chosen is None else chosen[cut]
                if infinite_is_mean and part.is_floating_point():
                    part = torch.where(part.isfinite(), part, _of_task(self.shift, of_task).to(part.dtype))
                part = part.double()
                yield part if is_kept is None else torch.where(is_kept, part, 0.0), is_kept, of_task

        whole = list(made()) if len(rows) <= size else None
        count = sum_over_ranks(count)
        sums = sum_over_ranks(_total(_sum(part, of_task) for part, _, of_task in whole or made()))
        mean = sums / count.clamp_min(1.0)

        def squared() -> Iterator[Tensor]:
            for part, is_kept, of_task in whole or made():
                distance = part - _of_task(mean, of_task)
                distance = distance if is_kept is None else torch.where(is_kept, distance, 0.0)
                yield _sum(distance.square(), of_task)

        squares = sum_over_ranks(_total(squared()))
        total = self.count + count
        delta = mean - self.mean
        divisor = total.clamp_min(1.0)
        squares = squares + self.var * self.count + delta.square() * (self.count * count / divisor)
        self.mean += delta * (count / divisor)
        self.var.copy_(torch.where(total > 0, squares / divisor, self.var))
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + _EPSILON).rsqrt())

    def normalise(self, x: Tensor, task: Tensor | None = None) -> Tensor:
        """``(x - mean) / std``, float32.

        Args:
            x: ``[..., *shape]``.
            task: float ``[..., tasks]``, one-hot; None without several tasks.
        """
        return (wide(x) - _of_task(self.shift, task)) * _of_task(self.scale, task)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Overridden as PyTorch's own modules do to load older files: checkpoints of earlier versions have one mean and
        # deviation for all tasks.
        for name, own in self.named_buffers():
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor) and given.ndim < own.ndim:
                state_dict[prefix + name] = given.expand(own.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def denormalise(self, x: Tensor) -> Tensor:
        """``x * std + mean``, float32: the inverse of :meth:`normalise`."""
        return wide(x) / self.scale + self.shift

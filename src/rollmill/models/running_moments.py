"""Running mean and standard deviation, as buffers that are published with the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

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


class RunningMeanStd(nn.Module):
    """Mean and standard deviation of all samples so far, for each element.

    Batches are merged by Chan, Golub and LeVeque's formula (1979, STAN-CS-79-773, equation 2.1) in float64, which
    neither loses small counts beside large ones nor cancels. ``shift`` and ``scale`` are derived in float32 at each
    update, so that using the statistics costs two small operations. No method waits for the device.

    Args:
        shape: Shape of one sample.

    Attributes:
        mean: float64 ``shape``; 0 before the first update.
        var: float64 ``shape``, population variance; 1 before the first update.
        count: float64 scalar, samples seen.
        shift: float32 ``shape``, the mean.
        scale: float32 ``shape``, ``1 / sqrt(var + 1e-8)``.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    @torch.no_grad()
    def update(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        infinite_is_mean: bool = False,
        /,
        *,
        sum_over_ranks: Sum = only_own,
    ) -> None:
        """Merge a batch.

        Args:
            x: ``[..., *shape]``, any number of leading axes and any dtype.
            valid: bool, with the same leading axes; False excludes a sample (which may be NaN). None includes all.
            infinite_is_mean: Whether infinite numbers count as the mean so far.
            sum_over_ranks: Sums a tensor over the ranks that merge their batches; every rank must call this.
        """
        rows = x.reshape(-1, *self.mean.shape)
        kept = None if valid is None else valid.reshape(-1, *[1] * self.mean.ndim)
        if kept is None:
            count = torch.full((), float(rows.shape[0]), dtype=torch.float64, device=rows.device)
        else:
            count = kept.sum().double()

        size = max(1, _PART_BYTES // (8 * max(1, self.mean.numel())))

        def made() -> Iterator[tuple[Tensor, Tensor | None]]:
            for begin in range(0, max(1, len(rows)), size):
                part, is_kept = rows[begin : begin + size], None if kept is None else kept[begin : begin + size]
                if infinite_is_mean and part.is_floating_point():
                    part = torch.where(part.isfinite(), part, self.shift.to(part.dtype))
                part = part.double()
                yield part if is_kept is None else torch.where(is_kept, part, 0.0), is_kept

        whole = list(made()) if len(rows) <= size else None
        count = sum_over_ranks(count)
        mean = sum_over_ranks(_total(part.sum(0) for part, _ in whole or made())) / count.clamp_min(1.0)
        distances = (
            part - mean if is_kept is None else torch.where(is_kept, part - mean, 0.0)
            for part, is_kept in whole or made()
        )
        squares = sum_over_ranks(_total(distance.square().sum(0) for distance in distances))
        total = self.count + count
        delta = mean - self.mean
        divisor = total.clamp_min(1.0)
        squares = squares + self.var * self.count + delta.square() * (self.count * count / divisor)
        self.mean += delta * (count / divisor)
        self.var.copy_(torch.where(total > 0, squares / divisor, self.var))
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + _EPSILON).rsqrt())

    def normalise(self, x: Tensor) -> Tensor:
        """``(x - mean) / std``, float32."""
        return (wide(x) - self.shift) * self.scale

    def denormalise(self, x: Tensor) -> Tensor:
        """``x * std + mean``, float32: the inverse of :meth:`normalise`."""
        return wide(x) / self.scale + self.shift

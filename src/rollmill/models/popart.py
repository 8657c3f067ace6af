"""A value output in the units of the rewards, whose network predicts normalised returns: PopArt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rollmill.models.running_moments import Sum, only_own

_LEAST_STD, _LARGEST_STD = 1e-4, 1e6
_SEEN_AT_START = 100.0


class PopArt(nn.Module):
    """Values of one or several tasks, each with its mean and standard deviation of returns.

    The layer's output is normalised, ``n_i = w_i . x + b_i``, and the value is ``v_i = sigma_i n_i + mu_i``. When the
    statistics change, ``w_i`` and ``b_i`` change the other way, so that every value stays what it was (van Hasselt et
    al. 2016, https://arxiv.org/abs/1602.07714; with several tasks Hessel et al. 2019,
    https://arxiv.org/abs/1809.04474).

    The statistics are means over all samples of a task at first, and later exponential ones, since returns grow while
    an agent learns. They begin as if a hundred returns of mean 0 and deviation 1 had been seen: a first batch of equal
    returns, as where rewards are rare, would otherwise make sigma almost zero, and the weights huge. The bounds of
    sigma are those of Hessel et al. No method waits for the device.

    Args:
        output: From features ``[..., F]`` to a number for each task.
        rate: Weight of a new sample in the exponential means. Ours: 1e-5, the last 100,000 samples of a task. Hessel et
            al. give 3e-4 to each batch of an update.

    Attributes:
        output: The layer, whose weights are rescaled.
        mean: float64 ``[tasks]``, mu; 0 before the first update.
        mean_square: float64 ``[tasks]``, of the returns; 1 before.
        count: float64 ``[tasks]``, samples seen.
        shift: float32 ``[tasks]``, mu.
        scale: float32 ``[tasks]``, sigma; 1 before the first update.
    """

    mean: Tensor
    mean_square: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, output: nn.Linear, *, rate: float = 1e-5) -> None:
        super().__init__()
        self.output = output
        self._rate = rate
        tasks = output.out_features
        self.register_buffer("mean", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("mean_square", torch.ones(tasks, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(tasks))
        self.register_buffer("scale", torch.ones(tasks))

    def forward(self, features: Tensor, task: Tensor | None = None) -> Tensor:
        """Map features ``[..., F]`` to values ``[...]`` in the units of the rewards.

        Args:
            features: The critic's.
            task: float ``[..., tasks]``, one-hot; may be left out with one task.
        """
        return self._of_task(self.output(features) * self.scale + self.shift, task)

    def precision(self, task: Tensor | None, like: Tensor) -> Tensor:
        """Return ``1 / sigma`` of each sample's task, in the shape of ``like [...]``.

        Args:
            task: As in :meth:`forward`, for these samples.
            like: A tensor of the samples' shape.
        """
        if task is None:
            return (1.0 / self.scale).expand(like.shape)
        return self._of_task(1.0 / self.scale, task)

    @torch.no_grad()
    def update(self, returns: Tensor, tasks: Tensor | None = None, *, sum_over_ranks: Sum = only_own) -> None:
        """Merge a batch of returns into the statistics, and keep all values.

        Args:
            returns: ``[n]``, in the units of the rewards.
            tasks: int64 ``[n]``; may be left out with one task.
            sum_over_ranks: Sums a tensor over the ranks that merge their batches; every rank must call this.
        """
        x = returns.double()
        if tasks is None:
            tasks = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        # Not index_add_, which adds in any order on a GPU: lockstep would not repeat.
        chosen = tasks == torch.arange(len(self.mean), device=x.device)[:, None]
        sums = [torch.where(chosen, values, 0.0).sum(1) for values in (torch.ones_like(x), x, x.square())]
        count, total, squares = sum_over_ranks(torch.stack(sums))
        self.count += count
        # At first a mean over all samples so far; the exponential mean's weight of this batch is a lower bound.
        share = torch.maximum(count / (self.count + _SEEN_AT_START), 1.0 - (1.0 - self._rate) ** count)
        divisor = count.clamp_min(1.0)
        self.mean += share * (total / divisor - self.mean)
        self.mean_square += share * (squares / divisor - self.mean_square)
        variance = (self.mean_square - self.mean.square()).clamp_min(0.0)
        std = variance.sqrt().clamp(_LEAST_STD, _LARGEST_STD)
        self._rescale(self.mean.to(self.shift.dtype), std.to(self.scale.dtype))

    def _rescale(self, shift: Tensor, scale: Tensor) -> None:
        weight, bias = self.output.weight, self.output.bias
        ratio = self.scale / scale
        weight.mul_(ratio[:, None].to(weight.dtype))
        bias.copy_((self.scale * bias + self.shift - shift) / scale)
        self.shift.copy_(shift)
        self.scale.copy_(scale)

    @staticmethod
    def _of_task(values: Tensor, task: Tensor | None) -> Tensor:
        if task is not None:
            return (values * task).sum(-1)
        if values.shape[-1] != 1:
            raise ValueError(
                f"the values of {values.shape[-1]} tasks were asked for without saying which: give the task"
            )
        return values.squeeze(-1)

"""Dense layers for few rows, such as a group of environments in a policy worker."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# Between these, on a CPU with AVX-512, reading the matrix along its rows is faster (docs/journal/2026-11.md).
_FEWEST_ROWS = {torch.float32: 8, torch.bfloat16: 1}
_MOST_ROWS = 128
_HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``functional.linear``, faster for a few rows and a large matrix without a gradient.

    Such a product takes as long as reading the matrix. BLAS reads a left factor along its rows and a right factor
    across them, so both factors and the result are transposed (views). Without AVX-512 that is no faster in float32.

    Args:
        x: float ``[..., F]``.
        weight: ``[H, F]``.
        bias: ``[H]`` or None.

    Returns:
        ``[..., H]``; the order of its dimensions in memory is not defined.
    """
    if torch.compiler.is_compiling() or not _HAS_AVX512:  # what is compiled takes any number of rows
        return functional.linear(x, weight, bias)
    rows = x.numel() // max(1, x.shape[-1])
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
    fewest = _FEWEST_ROWS.get(dtype, _MOST_ROWS + 1)
    if x.device.type != "cpu" or torch.is_grad_enabled() or not fewest <= rows <= _MOST_ROWS:
        return functional.linear(x, weight, bias)
    columns = x.reshape(rows, -1).t()
    product = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
    return product.t().reshape(*x.shape[:-1], len(weight))


class Dense(nn.Linear):
    """``nn.Linear`` with a bias, whose product is :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., F]`` to ``[..., H]``."""
        return linear(x, self.weight, self.bias)

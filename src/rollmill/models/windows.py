"""Convolutions of boards, as one matrix product over all of their windows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def convolve_windows(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...]) -> Tensor:
    """``functional.conv2d`` without padding, faster on a CPU for boards with few channels.

    It copies all windows into the rows of one matrix, and multiplies it by the weights (times in
    docs/journal/2026-11.md). The result has channels_last memory, whatever ``x`` has.

    Args:
        x: float ``[N, C, H, W]``.
        weight: ``[D, C, K, L]``.
        bias: ``[D]`` or None.
        stride: Down and to the right.

    Returns:
        ``[N, D, H', W']``.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.conv2d(x, weight, bias, stride)
    kernel = weight.shape[2:]
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).permute(0, 2, 3, 1, 4, 5)
    maps = functional.linear(windows.flatten(3), weight.flatten(1), bias)
    return maps.permute(0, 3, 1, 2)

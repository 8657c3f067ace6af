"""Convolutions by windows equal torch's, with gradients, for all memory formats, kernels and strides."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rollmill.models.windows import convolve_windows


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "stride"), [((4, 4), (1, 1)), ((3, 2), (1, 2)), ((6, 7), (1, 1)), ((1, 1), (2, 3))])
@pytest.mark.parametrize("has_bias", [False, True])
def test_equals_torchs(
    rows: int, memory_format: torch.memory_format, kernel: tuple[int, int], stride: tuple[int, int], has_bias: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 3, 6, 7, dtype=torch.float64).contiguous(memory_format=memory_format)
    weight = torch.randn(5, 3, *kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True) if has_bias else None
    inputs = [x.requires_grad_(), weight, *([bias] if bias is not None else [])]
    results = []
    for maps in (convolve_windows(x, weight, bias, stride), functional.conv2d(x, weight, bias, stride)):
        results.append((maps, *torch.autograd.grad(maps.square().sum(), inputs)))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected)


def test_respects_autocast() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 2, 6, 7), torch.randn(8, 2, 4, 4), torch.randn(8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = convolve_windows(x, weight, bias, (1, 1)), functional.conv2d(x, weight, bias)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=1e-1)


@torch.no_grad()
def test_can_be_traced_for_any_number_of_rows() -> None:
    class Layer(torch.nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return convolve_windows(x, self.weight, self.bias, self.stride)

    layer, rows = Layer(2, 8, 4), torch.export.Dim("rows", min=1)
    traced = torch.export.export(layer, (torch.randn(3, 2, 6, 7),), dynamic_shapes=({0: rows},), strict=False).module()
    for count in (1, 16):
        x = torch.randn(count, 2, 6, 7)
        torch.testing.assert_close(traced(x), layer(x))

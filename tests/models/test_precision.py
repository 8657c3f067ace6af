"""Computations that autocast does not narrow, and the rule behind "auto"."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rollmill.models.device import has_bf16_units
from rollmill.models.precision import in_full_precision, settled_precision, wide


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.float32])
def test_what_is_narrower_or_no_float_becomes_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    assert wide(x).dtype == torch.float32
    assert wide(x).tolist() == [1.0, 2.0, 3.0]


def test_float32_and_float64_are_not_copied() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype)
        assert wide(x) is x


@pytest.mark.parametrize("autocast", [False, True])
def test_a_head_computes_in_float32_whatever_surrounds_it(autocast: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 8), torch.randn(4, 64)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert (layer(x).dtype == torch.bfloat16) == autocast
        found: Tensor = in_full_precision(layer, x)
        # Autocast holds again after it.
        assert (layer(x).dtype == torch.bfloat16) == autocast
    assert torch.equal(found, expected)
    features = x.bfloat16()
    torch.testing.assert_close(in_full_precision(layer, features), layer(features.float()), rtol=0, atol=0)


def test_a_head_of_several_features_gets_all_of_them_wide() -> None:
    one, other = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float64)
    assert in_full_precision(lambda *parts: [part.dtype for part in parts], one, other) == [
        torch.float32,
        torch.float64,
    ]


def test_autocast_ends_and_holds_again_if_a_head_fails() -> None:
    def failing(x: Tensor) -> Tensor:
        raise ValueError("no")

    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match="no"):
            in_full_precision(failing, torch.ones(1))
        assert torch.is_autocast_enabled("cpu")


def test_bf16_is_for_images_on_devices_with_such_units() -> None:
    cpu = torch.device("cpu")
    assert settled_precision(cpu, has_images=False) == "fp32"
    assert settled_precision(cpu, has_images=True) == ("bf16" if has_bf16_units(cpu) else "fp32")
    assert settled_precision(torch.device("meta"), has_images=True) == "fp32"

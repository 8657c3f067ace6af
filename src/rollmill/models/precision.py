"""Compute precision: the rule behind "auto", and computations that are never narrower than float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor

from rollmill.models.device import has_bf16_units

T = TypeVar("T")


def wide(x: Tensor) -> Tensor:
    """Convert ``x`` to float32, or leave it in float64 (networks of double precision)."""
    return x if x.dtype == torch.float64 else x.float()


def in_full_precision(head: Callable[..., T], *features: Tensor) -> T:
    """Compute ``head(*features)`` in float32 (or float64) even under autocast: bfloat16 has three digits."""
    # Entering a context costs as much as a small layer, so it happens only under autocast.
    device = features[0].device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return head(*map(wide, features))
    return head(*map(wide, features))


def settled_precision(device: torch.device, *, has_images: bool) -> Literal["fp32", "bf16"]:
    """Resolve "auto": bf16 for networks with image inputs on devices with bf16 units, else fp32."""
    return "bf16" if has_images and has_bf16_units(device) else "fp32"

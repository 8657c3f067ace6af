"""The precision that is computed in: what is settled by rule, and what is never narrower than float32."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rollmill.models.device import has_bf16_units

__all__ = ["settled_precision", "wide"]


def wide(x: Tensor) -> Tensor:
    """``x`` in float32; in float64 where it is that already, in networks of double precision."""
    return x if x.dtype == torch.float64 else x.float()


def settled_precision(device: torch.device, *, has_images: bool) -> Literal["fp32", "bf16"]:
    """What "auto" stands for: bf16 for networks that see pictures on devices with units for it, else fp32."""
    return "bf16" if has_images and has_bf16_units(device) else "fp32"

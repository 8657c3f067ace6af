"""The precision that is computed in where it may not be measured."""

from __future__ import annotations

from typing import Literal

import torch

from rollmill.models.device import has_bf16_units

__all__ = ["settled_precision"]


def settled_precision(
    choice: Literal["auto", "fp32", "bf16"], device: torch.device, *, has_images: bool
) -> Literal["fp32", "bf16"]:
    """What was chosen; for "auto", bf16 for networks that see pictures on devices with units for it, else fp32."""
    if choice != "auto":
        return choice
    return "bf16" if has_images and has_bf16_units(device) else "fp32"

"""Which device "auto" is."""

from __future__ import annotations

import torch


def resolve_device(name: str) -> torch.device:
    """The device that a configuration names.

    Args:
        name: "auto" (the first CUDA device, else the CPU), or what :class:`torch.device` takes.

    Raises:
        ValueError: The name is none, or the device is not in this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is no device: give 'auto', 'cpu', 'cuda' or 'cuda:<number>'.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name!r}: this process sees {torch.cuda.device_count()} CUDA device(s); use 'auto' or 'cpu'."
        )
    return device

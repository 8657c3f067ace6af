"""Devices named in configurations. Importing this module does not import torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_FIRST_CUDA_WITH_BF16 = (8, 0)
_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # x86 (two) and ARM


class DeviceError(ValueError):
    """The device does not exist."""


def check_device_name(setting: str, name: object) -> None:
    """Check the form of a device name. The process that uses the device checks that it exists.

    Args:
        setting: Name of the setting for the message, such as ``"learner.device"``.
        name: The given value.

    Raises:
        ValueError: The name is not "auto", "cpu", "cuda" or "cuda:<index>".
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{setting}={name!r}: choose 'auto', 'cpu', 'cuda' or 'cuda:<index>'")


def resolve_device(name: str) -> torch.device:
    """Return the device that a configuration names.

    Args:
        name: "auto" (the first CUDA device, else the CPU), or what :class:`torch.device` takes.

    Raises:
        DeviceError: The name is invalid, or this machine lacks the device.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device={name!r} is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:<number>'.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device={name!r}: this process sees {torch.cuda.device_count()} CUDA device(s); use 'auto' or 'cpu'."
        )
    return device


def take_device(name: str) -> torch.device:
    """Resolve a device as :func:`resolve_device` does and make a GPU this process's current one.

    Operations on the current GPU, such as waiting for it, then apply to this device.
    """
    import torch

    device = resolve_device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def compute_repeatably(device: torch.device) -> None:
    """Have cuDNN and cuBLAS of this process choose kernels that give the same results each time.

    Must be called before the first computation: cuBLAS reads its variable when it is initialised
    (https://docs.pytorch.org/docs/stable/notes/randomness.html). Does nothing on a CPU.
    """
    import torch

    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def take_threads(threads: int) -> None:
    """Set this process's number of threads, and flush denormal numbers to zero.

    Parameters without a gradient, such as those of a dead ReLU, leave moments in Adam that shrink until they are
    denormal; arithmetic with denormal numbers takes a hundred times as long.
    """
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager and decorator: use one thread, then restore the previous number.

    A batch of a few rows is too small to share. When other processes keep the cores busy, waiting for the second thread
    at each operation makes it ten times slower.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def has_bf16_units(device: torch.device) -> bool:
    """Whether a device has bf16 units, faster than float32. Read from its properties, not measured."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _FIRST_CUDA_WITH_BF16
    if device.type != "cpu":
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())

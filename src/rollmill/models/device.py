"""Names of devices, as configurations give them. Importing this imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = [
    "DeviceError",
    "check_device_name",
    "has_bf16_units",
    "one_thread",
    "resolve_device",
    "take_device",
    "take_threads",
]

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")
_FIRST_CUDA_WITH_BF16 = (8, 0)
_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # x86's two, and ARM's


class DeviceError(ValueError):
    """There is no such device."""


def check_device_name(setting: str, name: object) -> None:
    """Checks the form of a device's name; whether the machine has it, the process that uses it finds out.

    Args:
        setting: For the message, ``"learner.device"``.
        name: What was given.

    Raises:
        ValueError: It is not "auto", "cpu", "cuda" or "cuda:<index>".
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{setting}={name!r}: choose 'auto', 'cpu', 'cuda' or 'cuda:<index>'")


def resolve_device(name: str) -> torch.device:
    """The device that a configuration names.

    Args:
        name: "auto" (the first CUDA device, else the CPU), or what :class:`torch.device` takes.

    Raises:
        DeviceError: The name is none, or the device is not in this machine.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device={name!r} is no device: give 'auto', 'cpu', 'cuda' or 'cuda:<number>'.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device={name!r}: this process sees {torch.cuda.device_count()} CUDA device(s); use 'auto' or 'cpu'."
        )
    return device


def take_device(name: str) -> torch.device:
    """As :func:`resolve_device`, for the one device of this process: a GPU becomes its current one.

    What works on "the" GPU without naming it, such as waiting for it, is then meant for this one.
    """
    import torch

    device = resolve_device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def take_threads(threads: int) -> None:
    """So many threads for this process's arithmetic, which takes denormal numbers for zero.

    What gets no gradient any more, such as a ReLU that has died, leaves moments in Adam that shrink until they are
    denormal, and stay so; arithmetic with such numbers takes a hundred times as long.
    """
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for what is done within, and afterwards as many as before; a decorator, too.

    A batch of a few rows is no work to be shared. Where other processes keep the cores busy, waiting for the second
    thread at each operation makes it ten times slower.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def has_bf16_units(device: torch.device) -> bool:
    """Whether a device multiplies bf16 numbers itself, faster than float32; a fact about it, nothing is measured."""
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

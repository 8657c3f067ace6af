"""How large a network is, before any memory is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from rollmill.runtime import cgroups
from rollmill.runtime.arena import MemoryPart, NotEnoughMemory

__all__ = ["fits", "largest_parameter", "made_within_memory", "without_memory"]

Module = TypeVar("Module", bound=nn.Module)


def without_memory(make: Callable[[], Module]) -> Module | None:
    """A network whose tensors have shapes and no values; None where it cannot be made so.

    Args:
        make: Makes it; a user's own may compute with its parameters, which these do not allow.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            module = make()
    except Exception:  # What is wrong with it shows when it is made as it is.
        return None
    return module if all(p.is_meta for p in module.parameters()) else None


def fits(module: nn.Module, available: int) -> bool:
    """Whether one copy of its parameters fits into so many bytes."""
    return _nbytes(module) <= available


def made_within_memory(make: Callable[[], Module]) -> Module:
    """A network, after a look at its size: that of a configuration of somebody else may be anything.

    Raises:
        NotEnoughMemory: Its parameters do not fit.
    """
    outline, available = without_memory(make), cgroups.available_memory()
    if outline is not None and not fits(outline, available):
        part = MemoryPart(f"the parameters of the network{largest_parameter(outline)}", _nbytes(outline))
        raise NotEnoughMemory(part.nbytes, available, "Use a machine with more memory, or another run.", [part])
    return make()


def largest_parameter(module: nn.Module) -> str:
    """For messages: name and shape of its largest parameter, in parentheses; empty where it has none."""
    named = max(module.named_parameters(), key=lambda item: item[1].numel(), default=None)
    return "" if named is None else f" (the largest is {named[0]} of shape {tuple(named[1].shape)})"


def _nbytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())

"""Size of a network, known before any memory is allocated for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from rollmill.runtime import cgroups
from rollmill.runtime.arena import MemoryPart, NotEnoughMemory

Module = TypeVar("Module", bound=nn.Module)


def without_memory(make: Callable[[], Module]) -> Module | None:
    """Build a network on the meta device; None if that fails.

    Args:
        make: Builds the network. A user's own may compute with its parameters, which fails on the meta device.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            module = make()
    except Exception:  # Building it normally reports the error.
        return None
    return module if all(p.is_meta for p in module.parameters()) else None


def fits(module: nn.Module, available: int) -> bool:
    """Whether one copy of the parameters fits into ``available`` bytes."""
    return _nbytes(module) <= available


def made_within_memory(make: Callable[[], Module]) -> Module:
    """Build a network after checking its size, because a foreign configuration may name any size.

    Raises:
        NotEnoughMemory: The parameters do not fit into memory.
    """
    outline, available = without_memory(make), cgroups.available_memory()
    if outline is not None and not fits(outline, available):
        part = MemoryPart(f"the parameters of the network{largest_parameter(outline)}", _nbytes(outline))
        raise NotEnoughMemory(part.nbytes, available, "Use a machine with more memory, or another run.", [part])
    return make()


def largest_parameter(module: nn.Module) -> str:
    """Name and shape of the largest parameter in parentheses, for messages; empty without parameters."""
    named = max(module.named_parameters(), key=lambda item: item[1].numel(), default=None)
    return "" if named is None else f" (the largest is {named[0]} of shape {tuple(named[1].shape)})"


def _nbytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())

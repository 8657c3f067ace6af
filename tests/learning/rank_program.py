"""One of two ranks on one host: runs the checks of ``test_process_group.py`` and prints their results.

A check that raises leaves its traceback; the other rank, which may wait for it then, ends by its timeout.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.learning.process_group import ProcessGroup, meeting
from rollmill.runtime.ranks import Ranks

TIMEOUT_S = 20.0
SHAPES = {
    "channels_last": (3, 4, 2, 5),
    "transposed": (4, 6),
    "contiguous": (4, 3, 2, 2),
    "channels_last_3d": (2, 3, 2, 2, 2),
}


def parameters() -> dict[str, nn.Parameter]:
    """One for each layout, the same on every rank."""
    random = torch.Generator().manual_seed(0)
    dense = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
    return {
        "channels_last": nn.Parameter(dense["channels_last"].contiguous(memory_format=torch.channels_last)),
        "transposed": nn.Parameter(dense["transposed"].t().contiguous().t()),
        "contiguous": nn.Parameter(dense["contiguous"]),
        "channels_last_3d": nn.Parameter(dense["channels_last_3d"].contiguous(memory_format=torch.channels_last_3d)),
    }


def gradients(rank: int) -> dict[str, Tensor]:
    """A rank's own: the logical values, in contiguous memory."""
    random = torch.Generator().manual_seed(1 + rank)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def descend_by_fused_adam(ranks: Ranks, group: ProcessGroup) -> dict[str, Any]:
    """SGD steps in which only rank 0, only rank 1, and both have gradients; and what one process would come to."""
    shared, alone = parameters(), parameters()
    for each in (shared, alone):
        each["unused"] = nn.Parameter(torch.ones(3))  # Without a gradient on every rank, so weight decay skips it.
    optimisers = [torch.optim.AdamW(each.values(), lr=0.1, fused=True) for each in (shared, alone)]
    layouts = []
    for has_samples in ((True, False), (False, True), (True, True)):
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        for rank in range(ranks.world_size):
            for name, gradient in gradients(rank).items() if has_samples[rank] else ():
                for each in (alone, shared) if rank == ranks.rank else (alone,):
                    # As autograd accumulates: in the parameter's layout.
                    (each[name] * gradient).sum().backward()
        total = group.sum_gradients(list(shared.values()), torch.tensor([float(ranks.rank), 1.0]))
        layouts.append([p.grad is not None and p.grad.stride() == p.stride() for p in shared.values()])
        assert not layouts[-1].pop(), "a parameter that no rank has a gradient of has got one"
        for optimiser in optimisers:
            optimiser.step()
    difference = {name: float((shared[name] - alone[name]).abs().max()) for name in shared}
    return {"layouts": layouts, "difference": difference, "statistics": total.tolist()}


CHECKS: dict[str, Callable[[Ranks, ProcessGroup], Any]] = {"fused adam": descend_by_fused_adam}


def main() -> None:
    """Meets the other rank, runs the checks, prints their results as one line of JSON."""
    results: dict[str, Any] = {}
    ranks = Ranks.of_this_process()
    with meeting(ranks):
        group = ProcessGroup(ranks, torch.device("cpu"), TIMEOUT_S)
        for name, check in CHECKS.items():
            try:
                results[name] = check(ranks, group)
            except Exception:
                results[name] = {"failed": traceback.format_exc()}
        group.close()
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())

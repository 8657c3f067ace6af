"""Program of one of two ranks on a host: runs the checks of ``test_process_group.py`` and prints results.

A check that raises prints its traceback; the other rank then ends by its timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.learning.process_group import ProcessGroup, compare, exchange, meeting, open_store
from rollmill.runtime.plain_data import MalformedMessageError
from rollmill.runtime.ranks import Ranks

TIMEOUT_S = 60.0
_LISTENS = "0A"  # state of a listening socket in /proc/net/tcp
SHAPES = {
    "channels_last": (3, 4, 2, 5),
    "transposed": (4, 6),
    "contiguous": (4, 3, 2, 2),
    "channels_last_3d": (2, 3, 2, 2, 2),
}


def parameters() -> dict[str, nn.Parameter]:
    """Create one parameter for each layout, the same on every rank."""
    random = torch.Generator().manual_seed(0)
    dense = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
    return {
        "channels_last": nn.Parameter(dense["channels_last"].contiguous(memory_format=torch.channels_last)),
        "transposed": nn.Parameter(dense["transposed"].t().contiguous().t()),
        "contiguous": nn.Parameter(dense["contiguous"]),
        "channels_last_3d": nn.Parameter(dense["channels_last_3d"].contiguous(memory_format=torch.channels_last_3d)),
    }


def gradients(rank: int) -> dict[str, Tensor]:
    """Create a rank's gradients, in contiguous memory."""
    random = torch.Generator().manual_seed(1 + rank)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def descend_by_fused_adam(ranks: Ranks, group: ProcessGroup) -> dict[str, Any]:
    """Run SGD steps in which rank 0, rank 1 or both have gradients; compare with one process."""
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
                    # In the parameter's layout, as autograd accumulates.
                    (each[name] * gradient).sum().backward()
        total = group.sum_gradients(list(shared.values()), torch.tensor([float(ranks.rank), 1.0]))
        layouts.append([p.grad is not None and p.grad.stride() == p.stride() for p in shared.values()])
        assert not layouts[-1].pop(), "a parameter without a gradient on any rank got one"
        for optimiser in optimisers:
            optimiser.step()
    difference = {name: float((shared[name] - alone[name]).abs().max()) for name in shared}
    return {"layouts": layouts, "difference": difference, "statistics": total.tolist()}


def exchange_plain_data(ranks: Ranks, group: ProcessGroup) -> dict[str, Any]:
    """Exchange items of different sizes, and objects that must be rejected."""
    item = (ranks.rank, ["x" * 1000 * ranks.rank], {"array": np.arange(ranks.rank * 5), "tensor": torch.ones(2, 3)})
    gathered = group.gather(item)
    state = group.broadcast({0: {"moments": torch.arange(6.0).view(2, 3).bfloat16()}} if ranks.rank == 0 else None)
    assert state is not None
    refused = []
    for give in (group.gather, group.broadcast):
        if ranks.rank == 0 or give == group.gather:
            try:
                give(ranks)
            except TypeError as error:
                refused.append(str(error))
    return {
        "gathered": [[r, len(texts[0]), d["array"].tolist(), d["tensor"].tolist()] for r, texts, d in gathered],
        "state": state[0]["moments"].tolist(),
        "compared": compare(ranks, "compared", ranks.rank * 10, TIMEOUT_S),
        "refused": refused,
    }


def refuse_pickles(ranks: Ranks, group: ProcessGroup) -> str:
    """Put a pickle into the run's store in place of rank 0's item."""
    if ranks.rank == 0:
        open_store(ranks, "exchange", TIMEOUT_S).set("settings", pickle.dumps(ranks))
        return ""
    try:
        exchange(ranks, "settings", lambda: None, TIMEOUT_S)
    except MalformedMessageError as error:
        return str(error)
    return "accepted"


def addresses_listened_on(ranks: Ranks, group: ProcessGroup) -> list[str]:
    """Return hexadecimal local addresses of this process's listening sockets."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


CHECKS: dict[str, Callable[[Ranks, ProcessGroup], Any]] = {
    "fused adam": descend_by_fused_adam,
    "plain data": exchange_plain_data,
    "pickles": refuse_pickles,
    "listening": addresses_listened_on,
}


def main() -> None:
    """Connect to the other rank, run the checks, and print their results as one line of JSON."""
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
        # Rank 0 hosts the store, which the other rank may still use.
        if ranks.rank:
            open_store(ranks, "end", TIMEOUT_S).set("rank 1", b"")
        else:
            open_store(ranks, "end", TIMEOUT_S).get("rank 1")
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())

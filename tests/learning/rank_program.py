"""One of two ranks on one host: runs the checks of ``test_process_group.py`` and prints their results.

A check that raises leaves its traceback; the other rank, which may wait for it then, ends by its timeout.
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
_LISTENS = "0A"  # Of a socket in /proc/net/tcp.
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


def exchange_plain_data(ranks: Ranks, group: ProcessGroup) -> dict[str, Any]:
    """Items of different sizes, and what must not go over the network."""
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
    """What somebody else puts into the run's store, where rank 0's item is waited for."""
    if ranks.rank == 0:
        open_store(ranks, "exchange", TIMEOUT_S).set("settings", pickle.dumps(ranks))
        return ""
    try:
        exchange(ranks, "settings", lambda: None, TIMEOUT_S)
    except MalformedMessageError as error:
        return str(error)
    return "taken over"


def addresses_listened_on(ranks: Ranks, group: ProcessGroup) -> list[str]:
    """Hexadecimal local addresses of this process's sockets that listen."""
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
        # Rank 0 keeps the store, which the other one may still ask.
        if ranks.rank:
            open_store(ranks, "end", TIMEOUT_S).set("rank 1", b"")
        else:
            open_store(ranks, "end", TIMEOUT_S).get("rank 1")
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())

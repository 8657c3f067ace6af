"""A process pinned to one core that runs stage kernels on request; talks JSON lines over its standard streams.

Requests and what they are answered:

- ``{"prepare": true}``: build the stages that have one variant only; ``{}``
- ``{"search": stage, "seconds": s}``: which variant is the fastest here? ``{"variant": name}``
- ``{"use": stage, "variant": name}``: build this one; ``{}``
- ``{"measure": stage, "seconds": s}``: ``{"us": microseconds a sample}``

or ``{"error": traceback}``. The process ends when its standard input is closed, which also happens when its parent
dies.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.machine_bound.frozen_kernels import Kernel, Variant

_FAMILY_MARGIN = 1.3  # a family this much slower than the best, at its first batch size, is not looked at further
_SEARCH_ROUNDS = 3


def time_kernel(kernel: Kernel, seconds: float) -> float:
    """Runs ``kernel`` for at least ``seconds`` and at least once.

    Returns:
        Microseconds a sample, the mean over all calls.
    """
    begin = now = time.perf_counter()
    samples = 0
    while now - begin < seconds or samples == 0:
        kernel.run()
        samples += kernel.samples
        now = time.perf_counter()
    return (now - begin) / samples * 1e6


def find_fastest(variants: list[Variant], seconds: float) -> tuple[str, Kernel]:
    """Finds the fastest variant, each judged by the best of three interleaved measurements.

    The best and not the mean, because what disturbs a measurement on a shared machine only ever makes it slower.

    Args:
        variants: The catalogue, families in any order.
        seconds: For all measurements together, about; every variant that is built runs at least twice.

    Returns:
        Its name and kernel.
    """
    first_of_family: dict[str, Variant] = {}
    for variant in variants:
        first_of_family.setdefault(variant.family, variant)
    slot = seconds / (len(variants) * _SEARCH_ROUNDS)
    built: dict[str, Kernel] = {}
    best: dict[str, float] = {}

    def look_at(some: list[Variant]) -> None:
        for variant in some:
            built[variant.name] = variant.build()
            built[variant.name].run()  # caches, lazily built primitives
            best[variant.name] = time_kernel(built[variant.name], 0.0)
        limit = _FAMILY_MARGIN * min(best.values())
        for _ in range(_SEARCH_ROUNDS):
            for variant in some:
                if best[variant.name] <= limit:
                    best[variant.name] = min(best[variant.name], time_kernel(built[variant.name], slot))

    look_at(list(first_of_family.values()))
    limit = _FAMILY_MARGIN * min(best.values())
    quick = {family for family, variant in first_of_family.items() if best[variant.name] <= limit}
    look_at([v for v in variants if v.family in quick and v.name not in built])
    winner = min(best, key=best.__getitem__)
    return winner, built[winner]


class KernelWorker:
    """The stages of one core.

    Args:
        catalogues: Stage -> (``"module:function"``, its keyword arguments).
    """

    def __init__(self, catalogues: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        self._variants: dict[str, list[Variant]] = {}
        self._kernels: dict[str, Kernel] = {}
        for stage, (reference, options) in catalogues.items():
            module, _, function = reference.partition(":")
            self._variants[stage] = getattr(importlib.import_module(module), function)(**options)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does what one request asks (see the module's docstring)."""
        if "prepare" in request:
            for stage, variants in self._variants.items():
                if len(variants) == 1:
                    self._use(stage, variants[0])
            return {}
        if "search" in request:
            stage = request["search"]
            if stage in self._kernels:
                return {"variant": self._variants[stage][0].name}
            name, self._kernels[stage] = find_fastest(self._variants[stage], request["seconds"])
            return {"variant": name}
        if "use" in request:
            stage = request["use"]
            (variant,) = (v for v in self._variants[stage] if v.name == request["variant"])
            if stage not in self._kernels:
                self._use(stage, variant)
            return {}
        return {"us": time_kernel(self._kernels[request["measure"]], request["seconds"])}

    def _use(self, stage: str, variant: Variant) -> None:
        self._kernels[stage] = variant.build()
        self._kernels[stage].run()


def main() -> None:
    """Serves requests until standard input is closed. ``argv``: the core, and the catalogues as JSON."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # simulators print banners on standard output, where only replies may go
    worker: KernelWorker | None = None
    for line in sys.stdin:
        try:
            if worker is None:
                worker = KernelWorker(json.loads(sys.argv[2]))
            reply = worker.answer(json.loads(line))
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

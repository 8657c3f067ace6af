"""Processes that run stage kernels for the bound, one pinned to each core, and the parent's ends of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rollmill.runtime.sweep import remove_leftovers

STAGES = ("env", "inference", "train")
_CHECKOUT = str(Path(__file__).parents[2])  # from where the worker imports these modules
_START_SECONDS = 120.0  # importing torch, building simulators and a first search, on a busy machine

Catalogues = Mapping[str, tuple[str, Mapping[str, str | int | float]]]
"""Stage -> where its catalogue of kernels is found (``"module:function"``), and its keyword arguments."""


class BoundError(RuntimeError):
    """A stage's kernel could not be measured."""


class _Worker:
    """The parent's end of one :mod:`benchmarks.machine_bound.kernel_worker` process."""

    def __init__(self, core: int, catalogues: Catalogues) -> None:
        self.core = core
        self._started = time.time()
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        search = os.pathsep.join(filter(None, (_CHECKOUT, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.machine_bound.kernel_worker", str(core), json.dumps(catalogues)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread, "PYTHONPATH": search},
            start_new_session=True,  # a group of its own, to which a simulator's engine belongs too
        )
        self._received = b""

    def send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() reports that the process ended
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BoundError(
                    f"the kernels of core {self.core} did not answer within {timeout_seconds:.0f} s; give the "
                    "measurement more time, or look whether something else keeps that core busy"
                )
            part = os.read(descriptor, 65536)
            if not part:
                raise BoundError(f"the process that runs the kernels of core {self.core} died ({self._process.wait()})")
            self._received += part
        line, self._received = self._received.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise BoundError(f"a kernel failed on core {self.core}:\n{reply['error']}")
        return reply

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # an engine whose controller died without closing it
            os.killpg(self._process.pid, signal.SIGKILL)
        remove_leftovers(self._started)


class KernelProcesses:
    """One process for each core, until :meth:`close`.

    Args:
        cores: To pin them to.
        catalogues: The kernels of every stage.
    """

    def __init__(self, cores: Sequence[int], catalogues: Catalogues) -> None:
        self._workers: list[_Worker] = []
        try:
            for core in cores:
                self._workers.append(_Worker(core, catalogues))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the processes and their simulators."""
        for worker in self._workers:
            worker.close()

    def choose(self, seconds: float) -> dict[str, str]:
        """Searches the variants on the first core, the others idle, and has all cores use what was found."""
        for worker in self._workers:
            worker.send(prepare=True)
        for worker in self._workers:
            worker.receive(_START_SECONDS)
        chosen: dict[str, str] = {}
        for stage in STAGES:
            self._workers[0].send(search=stage, seconds=seconds / len(STAGES))
            chosen[stage] = self._workers[0].receive(_START_SECONDS + 3 * seconds)["variant"]
        for worker in self._workers[1:]:
            for stage in STAGES:
                worker.send(use=stage, variant=chosen[stage])
        for worker in self._workers[1:]:
            for _ in STAGES:
                worker.receive(_START_SECONDS)
        return chosen

    def alone(self, core: int, seconds: float) -> dict[str, float]:
        """Microseconds a sample of each stage on one core."""
        worker = self._workers[core % len(self._workers)]
        times = {}
        for stage in STAGES:
            worker.send(measure=stage, seconds=seconds)
            times[stage] = worker.receive(_START_SECONDS + seconds)["us"]
        return times

    def loaded(self, seconds: float) -> dict[str, float]:
        """Microseconds a sample of each stage with all cores at work, mean over the cores."""
        times: dict[str, list[float]] = {stage: [] for stage in STAGES}
        for turn in range(len(STAGES)):
            stages = [STAGES[(i + turn) % len(STAGES)] for i in range(len(self._workers))]
            for worker, stage in zip(self._workers, stages, strict=True):
                worker.send(measure=stage, seconds=seconds)
            for worker, stage in zip(self._workers, stages, strict=True):
                times[stage].append(worker.receive(_START_SECONDS + seconds)["us"])
        return {stage: fmean(values) for stage, values in times.items()}

"""The machine's bound: how many agent steps a second its cores could simulate, infer and train on at best.

    bound = cores / (t_env + t_inference + epochs * t_train)        [agent steps / s]

with the time of each stage, in core-seconds a sample, taken from :mod:`rollmill.benchmarking.frozen_kernels` and
:mod:`rollmill.benchmarking.frozen_networks`. No
system can be faster unless it does a stage in less time than the fastest kernel known. Two bounds are given:

- *alone*: each stage measured on one core, the other cores idle. No real run can keep this pace where cores share
  caches, memory and clock speed.
- *loaded*: all cores at work at once, each on another stage, in turn: core i runs stage (i + k) mod 3 in measurement
  k = 0, 1, 2, so that each stage has the others as its neighbours, as in a real run, and each core has run each stage.
  On a machine with one core the two are the same measurement.

Measurements of both kinds are interleaved and the median over the rounds is taken, stage by stage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from types import TracebackType
from typing import Any, Self

from rollmill.runtime.sweep import remove_leftovers

__all__ = ["KINDS", "Bound", "BoundError", "StageKernels", "StageTimes", "available_cores", "measure_bound"]

_STAGES = ("env", "inference", "train")
_ROUNDS = 3
_START_SECONDS = 120.0  # importing torch, building simulators and a first search, on a busy machine
Options = Mapping[str, str | int | float]

_KERNELS = "rollmill.benchmarking.frozen_kernels"
_NETWORKS = "rollmill.benchmarking.frozen_networks"


class BoundError(RuntimeError):
    """A stage's kernel could not be measured."""


@dataclass(frozen=True, kw_only=True)
class StageKernels:
    """Where the kernels of the three stages are found.

    Attributes:
        env: ``"module:function"`` of a catalogue, a function that returns ``list[Variant]``.
        inference: Likewise.
        train: Likewise.
        env_options: Keyword arguments for the environment's catalogue, for example ``{"game": "pong"}``.
        train_options: Keyword arguments for the training's catalogue, for example ``{"minibatch": 256}``: Adam's share
            of a sample's time depends on it, and a kernel may not take larger batches than the algorithm does.
    """

    env: str
    inference: str
    train: str
    env_options: Options = field(default_factory=dict)
    train_options: Options = field(default_factory=dict)

    def catalogues(self) -> dict[str, tuple[str, dict[str, str | int | float]]]:
        """Stage -> (reference, keyword arguments)."""
        return {
            "env": (self.env, dict(self.env_options)),
            "inference": (self.inference, {}),
            "train": (self.train, dict(self.train_options)),
        }


KINDS: Mapping[str, StageKernels] = {
    "atari": StageKernels(
        env=f"{_KERNELS}:atari_env", inference=f"{_NETWORKS}:atari_inference", train=f"{_NETWORKS}:atari_train"
    ),
    "vizdoom": StageKernels(
        env=f"{_KERNELS}:vizdoom_env", inference=f"{_NETWORKS}:vizdoom_inference", train=f"{_NETWORKS}:vizdoom_train"
    ),
    "cartpole": StageKernels(
        env=f"{_KERNELS}:cartpole_env", inference=f"{_NETWORKS}:cartpole_inference", train=f"{_NETWORKS}:cartpole_train"
    ),
    "cartpole-envpool": StageKernels(
        env=f"{_KERNELS}:cartpole_envpool_env",
        inference=f"{_NETWORKS}:cartpole_inference",
        train=f"{_NETWORKS}:cartpole_train",
        train_options={"minibatch": 4096},
    ),
}


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Core-microseconds for one sample, stage by stage.

    Attributes:
        t_env_us: One agent step (all frames of its frameskip) of one environment.
        t_inference_us: One sample through forward pass and sampling.
        t_train_us: One sample through forward, backward and its share of the optimiser's step, once (one epoch).
    """

    t_env_us: float
    t_inference_us: float
    t_train_us: float

    def total_us(self, epochs: int) -> float:
        """Core-microseconds for one sample through all stages."""
        return self.t_env_us + self.t_inference_us + epochs * self.t_train_us


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound and what it is made of.

    Attributes:
        cores: The cores that were measured, and that the bound counts.
        epochs: Times that each sample is trained on.
        variants: Stage -> the variant that was the fastest on this machine.
        alone: Times with the other cores idle.
        loaded: Times with all cores at work.
    """

    cores: tuple[int, ...]
    epochs: int
    variants: Mapping[str, str]
    alone: StageTimes
    loaded: StageTimes

    @property
    def bound_steps_per_second(self) -> float:
        """Agent steps a second of all cores, stages measured alone."""
        return len(self.cores) * 1e6 / self.alone.total_us(self.epochs)

    @property
    def bound_loaded_steps_per_second(self) -> float:
        """Agent steps a second of all cores, stages measured under load."""
        return len(self.cores) * 1e6 / self.loaded.total_us(self.epochs)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "cores": len(self.cores),
            "epochs": self.epochs,
            "variants": dict(self.variants),
            "alone": vars(self.alone),
            "loaded": vars(self.loaded),
            "bound_steps_per_second": self.bound_steps_per_second,
            "bound_loaded_steps_per_second": self.bound_loaded_steps_per_second,
        }


def available_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


class _Worker:
    """The parent's end of one :mod:`rollmill.benchmarking.kernel_worker` process."""

    def __init__(self, core: int, kernels: StageKernels) -> None:
        self.core = core
        self._started = time.time()
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.benchmarking.kernel_worker", str(core), json.dumps(kernels.catalogues())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread},
            start_new_session=True,  # a group of its own, to which a simulator's engine belongs too
        )
        self._received = b""

    def send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() notices that the process has ended, and says so
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


class _Workers:
    """One worker for each core, ended whatever happens."""

    def __init__(self, cores: Sequence[int], kernels: StageKernels) -> None:
        self._workers: list[_Worker] = []
        try:
            for core in cores:
                self._workers.append(_Worker(core, kernels))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def choose(self, seconds: float) -> dict[str, str]:
        """Searches the variants on the first core, the others idle, and has all cores use what was found."""
        for worker in self._workers:
            worker.send(prepare=True)
        for worker in self._workers:
            worker.receive(_START_SECONDS)
        chosen: dict[str, str] = {}
        for stage in _STAGES:
            self._workers[0].send(search=stage, seconds=seconds / len(_STAGES))
            chosen[stage] = self._workers[0].receive(_START_SECONDS + 3 * seconds)["variant"]
        for worker in self._workers[1:]:
            for stage in _STAGES:
                worker.send(use=stage, variant=chosen[stage])
        for worker in self._workers[1:]:
            for _ in _STAGES:
                worker.receive(_START_SECONDS)
        return chosen

    def alone(self, core: int, seconds: float) -> dict[str, float]:
        """Microseconds a sample of each stage on one core."""
        worker = self._workers[core % len(self._workers)]
        times = {}
        for stage in _STAGES:
            worker.send(measure=stage, seconds=seconds)
            times[stage] = worker.receive(_START_SECONDS + seconds)["us"]
        return times

    def loaded(self, seconds: float) -> dict[str, float]:
        """Microseconds a sample of each stage with all cores at work, mean over the cores."""
        times: dict[str, list[float]] = {stage: [] for stage in _STAGES}
        for turn in range(len(_STAGES)):
            stages = [_STAGES[(i + turn) % len(_STAGES)] for i in range(len(self._workers))]
            for worker, stage in zip(self._workers, stages, strict=True):
                worker.send(measure=stage, seconds=seconds)
            for worker, stage in zip(self._workers, stages, strict=True):
                times[stage].append(worker.receive(_START_SECONDS + seconds)["us"])
        return {stage: fmean(values) for stage, values in times.items()}


def _median_times(rounds: Sequence[Mapping[str, float]]) -> StageTimes:
    return StageTimes(**{f"t_{stage}_us": median(r[stage] for r in rounds) for stage in _STAGES})


def measure_bound(
    kind: str | StageKernels,
    seconds: float,
    *,
    epochs: int = 1,
    cores: Sequence[int] | None = None,
    env_options: Options | None = None,
    train_options: Options | None = None,
) -> Bound:
    """Measures the machine's bound.

    Args:
        kind: One of ``KINDS``, or the kernels of an environment and model of one's own.
        seconds: For the measurements together; a quarter of it finds the fastest variants. Starting the processes
            takes some seconds more.
        epochs: Times that each sample is trained on.
        cores: Which cores to count and measure on; by default all that this process may use.
        env_options: For the environment's catalogue, over those of ``kind``: ``{"game": "pong"}``.
        train_options: For the training's, likewise: ``{"minibatch": 256}``.

    Returns:
        The bound, alone and loaded.

    Raises:
        ValueError: ``kind`` is unknown, ``seconds`` or ``epochs`` is not positive, or a core is not available.
        BoundError: A kernel raised, died or did not answer.
    """
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(
                f"no kernels for {kind!r}: there are {', '.join(KINDS)}; pass a StageKernels for one of your own"
            )
        kind = KINDS[kind]
    if seconds <= 0 or epochs < 1:
        raise ValueError(f"seconds={seconds} and epochs={epochs} must be positive")
    cores = tuple(available_cores() if cores is None else cores)
    if not cores or not set(cores) <= set(available_cores()):
        raise ValueError(f"cores {cores} must be some of those that this process may use, {available_cores()}")
    kernels = replace(
        kind,
        env_options={**kind.env_options, **(env_options or {})},
        train_options={**kind.train_options, **(train_options or {})},
    )
    slot = 0.75 * seconds / (_ROUNDS * 2 * len(_STAGES))
    with _Workers(cores, kernels) as workers:
        variants = workers.choose(0.25 * seconds)
        alone, loaded = [], []
        for turn in range(_ROUNDS):
            alone.append(workers.alone(turn, slot))
            loaded.append(workers.loaded(slot))
    return Bound(
        cores=cores, epochs=epochs, variants=variants, alone=_median_times(alone), loaded=_median_times(loaded)
    )


def main() -> None:
    """``python -m rollmill.benchmarking.bound atari --seconds 20``: prints the bound as JSON."""
    parser = argparse.ArgumentParser(description="Measures the machine's bound.")
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(measure_bound(arguments.kind, arguments.seconds, epochs=arguments.epochs).as_dict(), indent=1))


if __name__ == "__main__":
    main()

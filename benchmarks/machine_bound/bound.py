"""The machine's bound: how many agent steps a second its cores could simulate, infer and train on at best.

    bound = cores / (t_env + t_inference + epochs * t_train)        [agent steps / s]

with the time of each stage, in core-seconds a sample, taken from :mod:`benchmarks.machine_bound.frozen_kernels` and
:mod:`benchmarks.machine_bound.frozen_networks`. No system can be faster unless it does a stage in less time than the
fastest kernel known. Two bounds are given:

- *alone*: each stage measured on one core, the other cores idle. No real run can keep this pace where cores share
  caches, memory and clock speed.
- *loaded*: all cores at work at once, each on another stage, in turn: core i runs stage (i + k) mod 3 in measurement
  k = 0, 1, 2, so that each stage has the others as its neighbours, as in a real run, and each core has run each stage.
  On a machine with one core the two are the same measurement.

Measurements of both kinds are interleaved and averaged over the rounds, stage by stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import TracebackType
from typing import Any, Self

from benchmarks.machine_bound.kernel_processes import STAGES, KernelProcesses

_ROUNDS = 3
Options = Mapping[str, str | int | float]

_KERNELS = "benchmarks.machine_bound.frozen_kernels"
_NETWORKS = "benchmarks.machine_bound.frozen_networks"


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


class BoundMeter:
    """Measures the bound round by round, for a machine whose speed changes while something else is measured, too.

    A context manager: its processes, one on each core, end with it. Between the rounds they only wait.

    Args:
        kind: One of ``KINDS``, or the kernels of an environment and model of one's own.
        epochs: Times that each sample is trained on.
        cores: Which cores to count and measure on; by default all that this process may use.
        env_options: For the environment's catalogue, over those of ``kind``: ``{"game": "pong"}``.
        train_options: For the training's, likewise: ``{"minibatch": 256}``.

    Raises:
        ValueError: ``kind`` is unknown, ``epochs`` is not positive, or a core is not available.
    """

    def __init__(
        self,
        kind: str | StageKernels,
        *,
        epochs: int = 1,
        cores: Sequence[int] | None = None,
        env_options: Options | None = None,
        train_options: Options | None = None,
    ) -> None:
        if isinstance(kind, str):
            if kind not in KINDS:
                raise ValueError(
                    f"no kernels for {kind!r}: there are {', '.join(KINDS)}; pass a StageKernels for one of your own"
                )
            kind = KINDS[kind]
        if epochs < 1:
            raise ValueError(f"epochs={epochs} must be positive")
        self._cores = tuple(available_cores() if cores is None else cores)
        if not self._cores or not set(self._cores) <= set(available_cores()):
            raise ValueError(
                f"cores {self._cores} must be some of those that this process may use, {available_cores()}"
            )
        kernels = replace(
            kind,
            env_options={**kind.env_options, **(env_options or {})},
            train_options={**kind.train_options, **(train_options or {})},
        )
        self._epochs = epochs
        self._variants: dict[str, str] = {}
        self._alone: list[Mapping[str, float]] = []
        self._loaded: list[Mapping[str, float]] = []
        self._processes = KernelProcesses(self._cores, kernels.catalogues())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._processes.close()

    def choose_variants(self, seconds: float) -> None:
        """Finds the fastest kernel of each stage, once, before the first round.

        Raises:
            BoundError: A kernel raised, died or did not answer.
        """
        self._variants = self._processes.choose(seconds)

    def measure_round(self, seconds: float) -> None:
        """Measures each stage once alone and once under load, in so many seconds together.

        Raises:
            BoundError: A kernel raised, died or did not answer.
        """
        slot = seconds / (2 * len(STAGES))
        self._alone.append(self._processes.alone(len(self._alone), slot))
        self._loaded.append(self._processes.loaded(slot))

    def bound(self, average: Callable[[list[float]], float] = median) -> Bound:
        """The bound, with each stage's time averaged over the rounds.

        Args:
            average: The median leaves out what disturbs a single round. Beside something that was measured between the
                rounds, and met the same disturbances, the mean is right.
        """
        return Bound(
            cores=self._cores,
            epochs=self._epochs,
            variants=self._variants,
            alone=_average_times(self._alone, average),
            loaded=_average_times(self._loaded, average),
        )


def _average_times(rounds: Sequence[Mapping[str, float]], average: Callable[[list[float]], float]) -> StageTimes:
    return StageTimes(**{f"t_{stage}_us": average([r[stage] for r in rounds]) for stage in STAGES})


def measure_bound(kind: str | StageKernels, seconds: float, **options: Any) -> Bound:
    """Measure the machine's bound, in three rounds.

    Args:
        kind: As in :class:`BoundMeter`.
        seconds: For the measurements together; a quarter of it finds the fastest variants. Starting the processes
            takes some seconds more.
        options: Keyword arguments of :class:`BoundMeter`.

    Returns:
        The bound, alone and loaded.

    Raises:
        ValueError: ``kind`` is unknown, ``seconds`` or ``epochs`` is not positive, or a core is not available.
        BoundError: A kernel raised, died or did not answer.
    """
    if seconds <= 0:
        raise ValueError(f"seconds={seconds} must be positive")
    with BoundMeter(kind, **options) as meter:
        meter.choose_variants(0.25 * seconds)
        for _ in range(_ROUNDS):
            meter.measure_round(0.75 * seconds / _ROUNDS)
        return meter.bound()

"""Choice of the learner's compute settings by measuring the real model before training starts.

Precision, memory format and micro-batch size change the time of a training sample by a factor of five on a CPU
(depending on the CPU). None of them changes what is learned, except for rounding. Settings of the user are kept and not
measured.
"""

from __future__ import annotations

import math
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import nn

from rollmill.learning.config import ComputeConfig

MICRO_BATCHES = (64, 128, 256, 512)
# A candidate must beat earlier ones by this margin; a smaller one would let noise decide between runs.
MARGIN = 0.03
_NUMBER = re.compile(r"\d+")


class FastPathError(RuntimeError):
    """No way to compute an update works for this model on this device."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to compute forward and backward passes.

    Attributes:
        precision: ``"bf16"`` runs under autocast.
        micro_batch: Samples of one forward and backward pass; in one pass of the encoder for trajectories.
        channels_last: Memory format of convolutions and images.
        compile: Whether torch.compile is used.
    """

    precision: Literal["fp32", "bf16", "fp64"]
    micro_batch: int
    channels_last: bool
    compile: bool = False

    def describe(self) -> str:
        """Describe the candidate, such as ``bf16, channels_last, micro-batch 128``."""
        words = [self.precision, "channels_last" if self.channels_last else "channels_first"]
        words += [f"micro-batch {self.micro_batch}"]
        words += ["compiled"] * self.compile
        return ", ".join(words)


class Measurement(NamedTuple):
    """One row of the report.

    Attributes:
        candidate: The measured candidate.
        us_per_sample: Median microseconds for a sample's forward and backward pass; None if it failed.
        repetitions: Number of timings.
        failure: Reason of the failure; empty without one.
    """

    candidate: Candidate
    us_per_sample: float | None
    repetitions: int
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class FastPath(Candidate):
    """The chosen candidate and its measurements.

    Attributes:
        graph_samples: For trajectories: maximum number of samples whose activations are held at once, in whole
            trajectories. 0 means ``micro_batch``.
        report: One row for each candidate in order of measurement; empty if there was no choice.
    """

    graph_samples: int = 0
    report: tuple[Measurement, ...] = ()

    def describe(self) -> str:
        """Describe the choice, with its time if it was measured."""
        words = super().describe()
        for row in self.report:
            if row.us_per_sample is not None and row.candidate.describe() == words:
                return f"{words}: {row.us_per_sample:.0f} us/sample ({len(self.report)} ways measured)"
        return f"{words} (as configured)"


PLAIN = FastPath(precision="fp32", micro_batch=1024, channels_last=True)
"""A path that works for every model on every device."""


def candidates_for(
    config: ComputeConfig, full: int, device: torch.device | str, *, has_images: bool
) -> tuple[Candidate, ...]:
    """List the candidates that ``config`` allows on ``device``, the default ones first.

    Args:
        config: Options other than ``"auto"`` have the same value in all candidates.
        full: Samples of a minibatch.
        device: Compilation is open on CUDA only: on a CPU a compiler may be missing.
        has_images: Whether the memory format matters to the model.
    """
    on_cuda = torch.device(device).type == "cuda"
    sizes = {full, *(size for size in MICRO_BATCHES if size < full)}
    if has_images and not on_cuda and full > 2 * max(MICRO_BATCHES):
        sizes.remove(full)  # too large for any cache, and slow to time
    micro_batches = sorted(sizes) if config.micro_batch == "auto" else [config.micro_batch]

    def options(choice: bool | Literal["auto"], *, is_open: bool) -> tuple[bool, ...]:
        if choice == "auto":
            return (False, True) if is_open else (False,)
        return (choice,)

    precisions: tuple[Literal["fp32", "bf16", "fp64"], ...] = (
        ("fp32", "bf16") if config.precision == "auto" else (config.precision,)
    )
    return tuple(
        Candidate(precision=precision, micro_batch=size, channels_last=layout, compile=compiled)
        for compiled in options(config.compile, is_open=on_cuda)
        # Likely ones first, in case of a short budget: channels_last is nearly always faster.
        for layout in reversed(options(config.channels_last, is_open=has_images))
        for precision in precisions
        for size in micro_batches
    )


def choose(
    make_step: Callable[[Candidate], Callable[[], None]],
    candidates: Sequence[Candidate],
    budget_s: float = 2.5,
    *,
    device: torch.device | str = "cpu",
    modules: Sequence[nn.Module] = (),
    is_stop_wanted: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
    timer: Callable[[], float] | None = None,
) -> FastPath:
    """Time candidates and return the one with the smallest median time per sample.

    Not every combination is measured. Precisions and memory formats are compared at one micro-batch size (on CPU the
    smallest, which is the fastest to time; on CUDA the largest, because small ones measure kernel launches), then sizes
    for the best of those, then compilation for the best of those. Within each stage, candidates close to the
    best are timed twice, some time apart, because other processes load the machine unevenly, and slow ones are
    abandoned early.

    Args:
        make_step: Returns, for a candidate, a function that runs the forward and backward pass of ``micro_batch``
            samples of random data. It may set the model up for the candidate; the previous candidate's function is not
            called afterwards. The function's first call, which is not timed, may compile.
        candidates: From ``candidates_for``. A single one is returned without measuring anything.
        budget_s: Seconds after which no further candidate is started, without compilation time.
        device: A CUDA device is synchronised around each measurement.
        modules: Modules that the steps change. They and torch's random states are restored afterwards.
        is_stop_wanted: True ends the measurement like the end of the budget.
        clock: Seconds for the budget.
        timer: Seconds for comparing candidates. By default, the wall clock; for one torch thread on a CPU, that
            thread's CPU time, which does not depend on other processes.

    Raises:
        ValueError: There are no candidates.
        FastPathError: All candidates failed for different reasons; the first failure is the cause.
        Exception: The error of the model itself, if all candidates failed with it.
    """
    if not candidates:
        raise ValueError("no candidates to choose from: give at least one")
    if len(candidates) == 1:
        return FastPath(**vars(candidates[0]))
    on_cuda = torch.device(device).type == "cuda"
    if timer is None:
        timer = time.thread_time if not on_cuda and torch.get_num_threads() == 1 else time.perf_counter
    bench = _Bench(make_step, on_cuda, is_stop_wanted, clock, timer, clock() + budget_s)
    plain = list(dict.fromkeys(map(_plain, candidates)))
    screened_at = (max if on_cuda else min)(c.micro_batch for c in plain)
    with undisturbed(*modules):
        best = bench.best_of([c for c in plain if c.micro_batch == screened_at]) or plain[0]
        best = bench.best_of([c for c in plain if c == replace(best, micro_batch=c.micro_batch)]) or best
        if not bench.times:
            kinds: list[tuple[Candidate, Exception]] = []
            for candidate, error in bench.failures.items():
                if not any(_is_alike(error, told) for _, told in kinds):
                    kinds.append((candidate, error))
            first = kinds[0][1]
            if len(kinds) == 1:
                raise first  # the model's own error
            failures = "; ".join(f"{candidate.describe()}: {_first_line(error)}" for candidate, error in kinds)
            raise FastPathError(
                f"the model's forward and backward pass failed with all settings tried ({failures}): fix the "
                f"model, or set learner.precision, micro_batch and channels_last to working values"
            ) from first
        engines = [c for c in candidates if _plain(c) == best]
        best = (bench.best_of(engines) or engines[0]) if len(engines) > 1 else engines[0]
    if on_cuda:
        torch.cuda.empty_cache()  # memory of the other candidates
    return FastPath(**vars(best), report=bench.report())


@contextmanager
def undisturbed(*modules: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, gradients, memory formats and torch's random states on exit.

    Parameters keep their storage, so that other views of it (flat weights, shared memory) stay valid.
    """
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    saved = [(t, t.data, t.detach().clone(), t.grad) for t in tensors]
    gradients = [None if t.grad is None else t.grad.clone() for t in tensors]
    # Reading a GPU's random state would initialise CUDA.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for (tensor, storage, value, grad), gradient in zip(saved, gradients, strict=True):
                tensor.data = storage
                tensor.data.copy_(value)
                tensor.grad = grad
                if grad is not None and gradient is not None:
                    grad.copy_(gradient)


def _plain(candidate: Candidate) -> Candidate:
    """Return the candidate without compilation, which is compared last because of its setup time."""
    return replace(candidate, compile=False)


def _is_alike(one: Exception, other: Exception) -> bool:
    """Whether two errors differ only in numbers, such as batch sizes."""
    return type(one) is type(other) and _NUMBER.sub("#", str(one)) == _NUMBER.sub("#", str(other))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class _Bench:
    """Times candidates until a deadline, and keeps all times and failures."""

    MIN_REPETITIONS = 3
    ENOUGH_S = 0.25  # of timing one candidate, for any number of repetitions
    CLOSE = 0.15
    HOPELESS = 1.5

    def __init__(
        self,
        make_step: Callable[[Candidate], Callable[[], None]],
        on_cuda: bool,
        is_stop_wanted: Callable[[], bool],
        clock: Callable[[], float],
        timer: Callable[[], float],
        deadline: float,
    ) -> None:
        self._make_step = make_step
        self._on_cuda = on_cuda
        self._is_stop_wanted = is_stop_wanted
        self._clock = clock
        self._timer = timer
        self._deadline = deadline
        self.times: dict[Candidate, list[float]] = {}
        self.failures: dict[Candidate, Exception] = {}

    def best_of(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the first candidate that is within ``MARGIN`` of the fastest; None if none could be timed."""
        for candidate in candidates:
            if candidate not in self.times and candidate not in self.failures:
                self._measure(candidate)
        timed = [c for c in candidates if c in self.times]
        if not timed:
            return None
        fastest = min(map(self._median, timed))
        close = [c for c in timed if self._median(c) <= fastest * (1 + self.CLOSE)]
        if len(close) > 1:
            for candidate in close:
                if not candidate.compile:  # its setup is slow
                    self._measure(candidate)
            fastest = min(map(self._median, close))
        return next(c for c in close if self._median(c) <= fastest * (1 + MARGIN))

    def report(self) -> tuple[Measurement, ...]:
        """Return one row for each measured candidate, failed ones last."""
        rows = [Measurement(c, 1e6 * self._median(c), len(times)) for c, times in self.times.items()]
        return (*rows, *(Measurement(c, None, 0, _first_line(e)) for c, e in self.failures.items()))

    def _median(self, candidate: Candidate) -> float:
        """Return the median seconds per sample."""
        return statistics.median(self.times[candidate]) / candidate.micro_batch

    def _measure(self, candidate: Candidate) -> None:
        """Add a few timings, or the failure; a no-op after the deadline, except for the first candidate."""
        if (self.times or self.failures) and (self._clock() >= self._deadline or self._is_stop_wanted()):
            return
        hopeless_s = self.HOPELESS * candidate.micro_batch * min(map(self._median, self.times), default=math.inf)
        try:
            began = self._clock()
            step = self._make_step(candidate)
            first_s = self._time(step)
            if candidate.compile or self._on_cuda:  # a GPU loads libraries on first use
                self._deadline += self._clock() - began
            times = [self._time(step)]
            if min(first_s, times[0]) < hopeless_s:  # else spend the budget on other candidates
                while len(times) < self.MIN_REPETITIONS and sum(times) < self.ENOUGH_S:
                    times.append(self._time(step))
        except Exception as error:  # a missing backend may raise anything; others may work
            self.failures[candidate] = error
            traceback.clear_frames(error.__traceback__)  # frees activations after an out-of-memory error
            if self._on_cuda:
                torch.cuda.empty_cache()
            self.times.pop(candidate, None)
        else:
            self.times.setdefault(candidate, []).extend(times)

    def _time(self, step: Callable[[], None]) -> float:
        began = self._timer()
        step()
        if self._on_cuda:
            torch.cuda.synchronize()
        return self._timer() - began

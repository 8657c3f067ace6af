"""Chooses how the learner computes, by measuring the real model for a moment before training starts.

Precision, memory format and the size of a micro-batch change the time of a training sample by a factor of five on a CPU
(and which of them help depends on the CPU), CUDA graphs by a factor of two on a GPU. None of them changes what is
learned, except for rounding. What the user sets is not measured, only kept.
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

from rollmill.learning.config import LearnerConfig

__all__ = ["PLAIN", "Candidate", "FastPath", "FastPathError", "Measurement", "candidates_for", "choose", "undisturbed"]

MICRO_BATCHES = (64, 128, 256, 512)
# A candidate must beat the ones listed before it by this much; with less, noise would decide, and runs would differ.
MARGIN = 0.03
_NUMBER = re.compile(r"\d+")


class FastPathError(RuntimeError):
    """Not one of the ways to compute an update works for this model on this device."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to compute forward and backward passes.

    Attributes:
        precision: ``"bf16"`` runs under autocast.
        micro_batch: Samples of one forward and backward pass; of one pass through the encoder where time matters.
        channels_last: Memory format of convolutions and images.
        compile: Whether torch.compile is used.
    """

    precision: Literal["fp32", "bf16", "fp64"]
    micro_batch: int
    channels_last: bool
    compile: bool = False

    def describe(self) -> str:
        """Returns it in words, such as ``bf16, channels_last, micro-batch 128``."""
        words = [self.precision, "channels_last" if self.channels_last else "channels_first"]
        words += [f"micro-batch {self.micro_batch}"]
        words += ["compiled"] * self.compile
        return ", ".join(words)


class Measurement(NamedTuple):
    """One row of the report.

    Attributes:
        candidate: What was tried.
        us_per_sample: Median microseconds for a sample's forward and backward pass; None if it failed.
        repetitions: How many times it was timed.
        failure: Why it failed; empty if it did not.
    """

    candidate: Candidate
    us_per_sample: float | None
    repetitions: int
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class FastPath(Candidate):
    """The chosen way, and what was measured to choose it.

    Attributes:
        graph_samples: Where time matters: samples whose activations may be held at once, in whole trajectories. 0
            stands for ``micro_batch``.
        report: One row for each candidate that was tried, in the order they were tried; empty if there was no choice.
    """

    graph_samples: int = 0
    report: tuple[Measurement, ...] = ()

    def describe(self) -> str:
        """Returns the choice in words, with its time where it was measured."""
        words = super().describe()
        for row in self.report:
            if row.us_per_sample is not None and row.candidate.describe() == words:
                return f"{words}: {row.us_per_sample:.0f} us/sample ({len(self.report)} ways measured)"
        return f"{words} (as configured)"


PLAIN = FastPath(precision="fp32", micro_batch=1024, channels_last=True)
"""What works for every model on every device."""


def candidates_for(config: LearnerConfig, device: torch.device | str, *, has_images: bool) -> tuple[Candidate, ...]:
    """Lists the ways that ``config`` leaves open on ``device``, what needs a reason to be preferred coming later.

    Args:
        config: Each option of it that is not ``"auto"`` has one value in all candidates.
        device: Compilation is open on CUDA only: on a CPU a compiler may be missing.
        has_images: Whether the memory format matters to the model.
    """
    on_cuda = torch.device(device).type == "cuda"
    full = config.minibatch_size
    sizes = {full, *(size for size in MICRO_BATCHES if size < full)}
    if has_images and not on_cuda and full > 2 * max(MICRO_BATCHES):
        sizes.remove(full)  # Far beyond any cache, and long to time.
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
        # The likely ones first, should the time be too short for all: channels_last, which nearly always pays.
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
    """Times candidates and returns the one with the smallest median time for a sample.

    Not every combination is tried. First precisions and memory formats are compared at one micro-batch size (on CPU the
    smallest, which is the cheapest to time; on CUDA the largest, as small ones measure kernel launches), then sizes for
    the best of those, then graphs and compilation for the best of those. Within each of these stages, those close to
    the best are timed twice, some time apart, as other processes load the machine unevenly, and those far behind are
    given up early.

    Args:
        make_step: Gives for a candidate the function that runs the forward and backward pass of ``micro_batch`` samples
            of random data. It may set the model up for the candidate: another candidate's function is only made when
            this one's is no longer called. The function's first call, which is not timed, may compile or capture.
        candidates: From ``candidates_for``. A single one is returned without measuring anything.
        budget_s: Seconds, after which no further candidate is started; the time that compilation takes is not counted.
        device: Waited for around each measurement, if it is a CUDA device.
        modules: What the steps touch. They, and torch's random states, are afterwards what they were.
        is_stop_wanted: True ends the measuring as the end of the budget does.
        clock: Gives the seconds of the budget.
        timer: Gives the seconds that candidates are compared by. By default, the wall clock; for one torch thread on a
            CPU, that thread's CPU time, so that it does not matter how busy the machine is with other processes.

    Raises:
        ValueError: There are no candidates.
        FastPathError: Every candidate that was tried failed for another reason; the first failure is its cause.
        Exception: The error of the model itself, where every candidate that was tried failed with it.
    """
    if not candidates:
        raise ValueError("no candidates to choose from: give at least one, as candidates_for does")
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
                raise first  # The model's own error, in whatever way it is called.
            failures = "; ".join(f"{candidate.describe()}: {_first_line(error)}" for candidate, error in kinds)
            raise FastPathError(
                f"the model's forward and backward pass failed in every way that was tried ({failures}): mend the "
                f"model, or set learner.precision, micro_batch and channels_last to what works"
            ) from first
        engines = [c for c in candidates if _plain(c) == best]
        best = (bench.best_of(engines) or engines[0]) if len(engines) > 1 else engines[0]
    if on_cuda:
        torch.cuda.empty_cache()  # what only the other candidates needed
    return FastPath(**vars(best), report=bench.report())


@contextmanager
def undisturbed(*modules: nn.Module) -> Iterator[None]:
    """Puts parameters, buffers, gradients, memory formats and torch's random states back to what they were before.

    Parameters keep their storage, so that views of it elsewhere (flat weights, shared memory) stay views of it.
    """
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    saved = [(t, t.data, t.detach().clone(), t.grad) for t in tensors]
    gradients = [None if t.grad is None else t.grad.clone() for t in tensors]
    # Asking a GPU that nothing else uses for its random state would set up CUDA.
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
    """The candidate without graphs and compilation, which are compared last, as they take long to set up."""
    return replace(candidate, compile=False)


def _is_alike(one: Exception, other: Exception) -> bool:
    """Whether two errors are the same but for their numbers, which follow the size of the batch."""
    return type(one) is type(other) and _NUMBER.sub("#", str(one)) == _NUMBER.sub("#", str(other))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class _Bench:
    """Times candidates until a deadline, and keeps all times and failures."""

    MIN_REPETITIONS = 3
    ENOUGH_S = 0.25  # of timing one candidate, however few repetitions that is
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
        """The first of the candidates that is within ``MARGIN`` of the fastest; None if none could be timed."""
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
                if not candidate.compile:  # setting it up again would take long
                    self._measure(candidate)
            fastest = min(map(self._median, close))
        return next(c for c in close if self._median(c) <= fastest * (1 + MARGIN))

    def report(self) -> tuple[Measurement, ...]:
        """One row for each candidate that was tried; those that failed come last."""
        rows = [Measurement(c, 1e6 * self._median(c), len(times)) for c, times in self.times.items()]
        return (*rows, *(Measurement(c, None, 0, _first_line(e)) for c, e in self.failures.items()))

    def _median(self, candidate: Candidate) -> float:
        """Seconds for a sample."""
        return statistics.median(self.times[candidate]) / candidate.micro_batch

    def _measure(self, candidate: Candidate) -> None:
        """Adds a few times, or the failure; does nothing after the deadline, except for the very first candidate."""
        if (self.times or self.failures) and (self._clock() >= self._deadline or self._is_stop_wanted()):
            return
        hopeless_s = self.HOPELESS * candidate.micro_batch * min(map(self._median, self.times), default=math.inf)
        try:
            began = self._clock()
            step = self._make_step(candidate)
            first_s = self._time(step)
            if candidate.compile or self._on_cuda:  # a GPU's libraries are loaded at their first use
                self._deadline += self._clock() - began
            times = [self._time(step)]
            if min(first_s, times[0]) < hopeless_s:  # else the budget is better spent on others
                while len(times) < self.MIN_REPETITIONS and sum(times) < self.ENOUGH_S:
                    times.append(self._time(step))
        except Exception as error:  # whatever a backend that this machine lacks raises: the others may work
            self.failures[candidate] = error
            traceback.clear_frames(error.__traceback__)  # they hold the activations of what ran out of memory
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

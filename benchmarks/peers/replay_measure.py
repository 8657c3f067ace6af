"""How every prioritised replay is measured and verified. Runs in each peer's own environment; needs NumPy alone.

A peer's script defines an :class:`Adapter` and calls :func:`main`. It fills the buffer and then prints one line of JSON
for each round: medians of the microseconds of single calls, made from Python, on one core. In each iteration the buffer
takes 64 transitions, gives a batch and takes its new priorities, as in training. With ``--serve`` a round begins when a
line arrives on standard input, so that several peers can take turns without filling their buffers again.

``--verify`` measures nothing: it checks that the peer samples in proportion to ``priority ** alpha`` and that its
importance weights and its transitions are right.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy, torch or Numba is imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["NUMBA_NUM_THREADS"] = "1"

import argparse
import gc
import json
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from statistics import median
from typing import Any, ClassVar, NamedTuple

import numpy as np

ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-8
OBS_SIZE = 8
INSERT = 64  # transitions of one insertion
_FILL = 512 * INSERT
_LOW, _LOW_SHARE = 0.01 ** (1 / ALPHA), 0.1  # --verify: one slot in ten has a hundredth of the others' priority
_MAX_TIMED = 20_000


class Transitions(NamedTuple):
    """Of N steps, as an actor has them: NumPy arrays."""

    obs: np.ndarray  # float32 [N, OBS_SIZE]
    action: np.ndarray  # int64 [N]
    reward: np.ndarray  # float32 [N]
    next_obs: np.ndarray  # float32 [N, OBS_SIZE]
    terminated: np.ndarray  # bool [N]


class Sampled(NamedTuple):
    """A batch in one shape for all peers; made for ``--verify`` alone, never while time is taken."""

    transitions: Transitions
    weights: np.ndarray  # [B]


class Adapter(ABC):
    """One peer's prioritised replay, with exponents ``ALPHA`` and ``BETA``.

    Args:
        capacity: Transitions that it holds.
    """

    name: ClassVar[str]
    configuration: ClassVar[str]  # what was chosen among its settings

    @abstractmethod
    def __init__(self, capacity: int) -> None: ...

    @staticmethod
    @abstractmethod
    def versions() -> dict[str, str]:
        """Of the packages that the figures depend on."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Transitions that are in it."""

    @abstractmethod
    def insert(self, transitions: Transitions) -> None:
        """Appends ``INSERT`` transitions in as few calls as there can be, with the highest priority so far."""

    @abstractmethod
    def sample(self, batch: int) -> Any:
        """The peer's own batch: indices, importance weights and the five arrays of :class:`Transitions`."""

    @abstractmethod
    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        """Gives the batch's slots new priorities, from the magnitudes of their TD errors, float32 ``[B]``."""

    @abstractmethod
    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        """The same for any slots, 0 to ``size - 1``; before time is taken alone."""

    def tickets(self, capacity: int) -> np.ndarray:
        """Slot -> number of the transition in it, when the buffer has been filled; here that of a ring."""
        inserted = -(-(capacity + INSERT) // INSERT) * INSERT
        slots = np.arange(self.size)
        return np.where(slots < inserted - self.size, slots + self.size, slots)

    @abstractmethod
    def unpack(self, sampled: Any) -> Sampled:
        """The batch in one shape for all."""


def _transitions(first: int, count: int, generator: np.random.Generator) -> Transitions:
    """``count`` transitions; ``first + i`` can be read off every field of the i-th but ``terminated``."""
    ticket = np.arange(first, first + count)
    obs = generator.standard_normal((count, OBS_SIZE), np.float32)
    obs[:, 0], obs[:, 1] = ticket % 4096, ticket // 4096  # float32 holds no larger integers exactly
    return Transitions(
        obs=obs,
        action=ticket,
        reward=(ticket % 65_536).astype(np.float32),
        next_obs=obs + 1,
        terminated=generator.random(count) < 0.01,
    )


def _fill(buffer: Adapter, capacity: int, generator: np.random.Generator) -> int:
    """Fills the buffer until it has wrapped around; returns how many transitions that took."""
    count = 0
    while count < capacity + INSERT:
        chunk = _transitions(count, _FILL, generator)
        for i in range(0, _FILL, INSERT):
            buffer.insert(Transitions(*(field[i : i + INSERT] for field in chunk)))
            count += INSERT
            if count >= capacity + INSERT:
                break
    return count


def _set_priorities(buffer: Adapter, td_error: np.ndarray) -> None:
    for i in range(0, len(td_error), 4096):
        part = td_error[i : i + 4096]
        buffer.update_slots(np.arange(i, i + len(part)), part)


def _round(buffer: Adapter, batch: int, seconds: float, generator: np.random.Generator) -> dict[str, float]:
    """Medians of the microseconds of single calls within ``seconds``, a fifth of which warms up."""
    td_errors = [np.abs(generator.standard_normal(batch, np.float32)) for _ in range(64)]
    rows = [_transitions(i * INSERT, INSERT, generator) for i in range(64)]
    clock = time.perf_counter_ns
    times: dict[str, list[int]] = {"sample": [], "update": [], "insert64": []}
    start = clock()
    warm, end = start + int(seconds * 2e8), start + int(seconds * 1e9)
    turn = 0
    while turn < 10 or (clock() < end and len(times["sample"]) < _MAX_TIMED):
        transitions, td_error = rows[turn % 64], td_errors[turn % 64]
        t0 = clock()
        buffer.insert(transitions)
        t1 = clock()
        sampled = buffer.sample(batch)
        t2 = clock()
        buffer.update(sampled, td_error)
        t3 = clock()
        turn += 1
        if t0 >= warm or turn > 7:
            times["insert64"].append(t1 - t0)
            times["sample"].append(t2 - t1)
            times["update"].append(t3 - t2)
    return {f"{name}_us": median(values) / 1000 for name, values in times.items()}


def _verify(
    buffer: Adapter, capacity: int, batch: int, seconds: float, generator: np.random.Generator
) -> dict[str, Any]:
    """Pearson's chi-square of how often each slot was drawn, and the greatest relative errors of the weights.

    The statistic's mean is its degrees of freedom however small the expected counts are; its variance for a
    multinomial, ``2 (k - 1) + (sum 1/p - k^2 - 2k + 2) / n``, is exact, and so is the z-score made with it. With few
    draws a slot it has little power against what float32 does to a million slots: there look at how often slots of
    low priority were drawn, and how many of them ever were.
    """
    size = buffer.size
    low = generator.random(size) < _LOW_SHARE
    td_error = np.where(low, _LOW, 1.0).astype(np.float32)
    _set_priorities(buffer, td_error)
    priority = td_error.astype(np.float64) ** ALPHA
    tickets = buffer.tickets(capacity)
    assert len(np.unique(tickets)) == size
    lookup = np.full(int(tickets.max()) + 1, -1)
    lookup[tickets] = np.arange(size)
    counts = np.zeros(size, np.int64)
    weight_error, wrong, normaliser = 0.0, 0, {"batch": 0.0, "buffer": 0.0}
    expected_unnormalised = priority**-BETA
    end = time.monotonic() + seconds
    draws = 0
    while time.monotonic() < end:
        transitions, weights = buffer.unpack(buffer.sample(batch))
        ticket = transitions.action.astype(np.int64).reshape(-1)
        slots = lookup[ticket]
        if (slots < 0).any():
            raise RuntimeError("a batch holds transitions that the buffer should not have")
        np.add.at(counts, slots, 1)
        draws += batch
        obs = transitions.obs.reshape(batch, OBS_SIZE)
        wrong += int((obs[:, 0] + 4096 * obs[:, 1].astype(np.float64) != ticket).sum())
        wrong += int((transitions.reward.reshape(-1) != ticket % 65_536).sum())
        wrong += int((transitions.next_obs.reshape(batch, OBS_SIZE) != obs + 1).any(1).sum())
        w = np.asarray(weights, np.float64).reshape(-1)
        oracle = expected_unnormalised[slots]
        for name, greatest in (("batch", oracle.max()), ("buffer", expected_unnormalised.max())):
            normaliser[name] = max(normaliser[name], float(np.abs(w / (oracle / greatest) - 1).max()))
        weight_error = max(weight_error, float(np.abs(w / w[0] / (oracle / oracle[0]) - 1).max()))
    probability = priority / priority.sum()
    expected = draws * probability
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    variance = 2 * (size - 1) + ((1 / probability).sum() - float(size) ** 2 - 2 * size + 2) / draws
    low_draws = draws * float(probability[low].sum())
    return {
        "draws": draws,
        "chi2_over_df": chi2 / (size - 1),
        "z": (chi2 - (size - 1)) / variance**0.5,
        "low_draws_over_expected": float(counts[low].sum() / low_draws),
        "low_draws_z": float((counts[low].sum() - low_draws) / low_draws**0.5),
        "low_slots_hit_over_expected": float((counts[low] > 0).mean() / (1 - (1 - probability[low][0]) ** draws)),
        "weights_relative_error_up_to_a_factor": weight_error,
        "weights_relative_error_if_normalised_by": normaliser,
        "wrong_fields": wrong,
    }


def main(variants: Mapping[str, type[Adapter]]) -> None:
    """The command line of every peer's script; the first of its variants is the fastest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round, or of the draws of --verify")
    parser.add_argument("--core", type=int, help="the core to stay on; without it, the last one there is")
    parser.add_argument("--serve", action="store_true", help="a round for each line on standard input")
    parser.add_argument("--verify", action="store_true", help="check the distribution, weights and data instead")
    parser.add_argument("--variant", choices=tuple(variants), default=next(iter(variants)), help="of its settings")
    arguments = parser.parse_args()
    adapter = variants[arguments.variant]
    core = max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core
    os.sched_setaffinity(0, {core})
    generator = np.random.default_rng(0)
    begin = time.monotonic()
    buffer = adapter(arguments.capacity)
    _fill(buffer, arguments.capacity, generator)
    if arguments.verify:
        verdict = _verify(buffer, arguments.capacity, arguments.batch, arguments.seconds, generator)
        print(json.dumps({"peer": adapter.name, "capacity": arguments.capacity, **verdict}), flush=True)
        return
    _set_priorities(buffer, np.abs(generator.standard_normal(buffer.size, np.float32)))
    gc.collect()
    gc.freeze()  # what was made by now is looked at no more
    about = {
        "peer": adapter.name,
        "configuration": adapter.configuration,
        "versions": {"python": ".".join(map(str, sys.version_info[:3])), "numpy": np.__version__, **adapter.versions()},
        "capacity": arguments.capacity,
        "size": buffer.size,
        "batch": arguments.batch,
        "fill_seconds": time.monotonic() - begin,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if not arguments.serve:
        print(json.dumps({**about, **_round(buffer, arguments.batch, arguments.seconds, generator)}), flush=True)
        return
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        print(json.dumps(_round(buffer, arguments.batch, arguments.seconds, generator)), flush=True)

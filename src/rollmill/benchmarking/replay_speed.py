"""``rollmill bench replay``: the times of a prioritised replay's operations, compared with other libraries.

The headline is a replay of a million transitions (eight float32 as observation), batches of 256: ``sample`` gives
indices, weights and all fields, ``update`` takes the batch's TD errors, ``insert64`` takes 64 transitions. Ours and the
peers' are measured by the same script (``benchmarks/replay_peers.py`` of a checkout), in turns on one core. Each peer
has its own environment; a peer without one is reported as absent, with the reason.

The other figures concern our implementation: the fanout K of the tree with groups of siblings on cache lines or across
them, the capacity, the batch size, and the throughput of several threads and processes with our locking, with one lock
that is also held while data are written, and without locks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from rollmill.native import FANOUTS, SumTree, replay_load, tree_alignment
from rollmill.replay import PrioritizedReplay
from rollmill.runtime.arena import NotEnoughMemory

PEERS_VARIABLE = "ROLLMILL_PEERS"  # names the folder with the peers' environments

_CHECKOUT = Path(__file__).resolve().parents[3]
_CAPACITY, _BATCH, _INSERT, _OBS_SIZE = 1_000_000, 256, 64, 8
_CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
_BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
_WORKERS = (1, 2, 4, 8)
_LOCKINGS: tuple[Literal["robust", "nested", "sharded", "global", "over_write", "none"], ...] = (
    "robust",
    "nested",
    "sharded",
    "global",
    "over_write",
    "none",
)
_LOAD_CAPACITY, _LOAD_ROW_BYTES = 1 << 14, 84 * 84  # frames of Atari, whose copies take long
_OFFSET = 32  # bytes past the start of a line: a group of 16 lies half on the next one
_ROUNDS = 3
_PEER_ROUNDS = 5
_OPERATIONS = ("sample", "update", "insert64")
# The share of the time for each part.
_SHARES = {"peers": 0.4, "fanout": 0.12, "capacity": 0.12, "batch": 0.06, "load": 0.3}


def run(
    seconds: float,
    *,
    environments: Path | None = None,
    install_peers: bool = False,
    capacity: int = _CAPACITY,
    capacities: Sequence[int] = _CAPACITIES,
    fanouts: Sequence[int] = FANOUTS,
    batches: Sequence[int] = _BATCHES,
    workers: Sequence[int] = _WORKERS,
) -> dict[str, Any]:
    """Run all measurements.

    Args:
        seconds: Time of all measurements together, without filling replays and starting processes.
        environments: Folder with the peers' environments; by default that in ``ROLLMILL_PEERS``, else the checkout.
        install_peers: Whether to create missing environments.
        capacity: Transitions of the headline.
        capacities: Capacities to measure.
        fanouts: Fanouts to measure.
        batches: Batch sizes to measure.
        workers: Numbers of threads, and of processes, to measure.

    Returns:
        ``sample_us``, ``update_us``, ``insert64_us`` (medians); ``peers``: name -> the same, or ``{"absent": reason}``;
        ``ratio_to_best_peer``: how many times as long as ours the sum of the three takes in the best peer, None without
        peers; ``fanout``: K -> microseconds of the bare tree's ``find``, ``update`` and ``insert64``, ``aligned`` and
        ``unaligned``;
        ``capacity`` and ``batch``: -> microseconds of the bare tree (``tree_sample``, ``tree_update``) and of the
        replay;
        ``growth``: how many times as long sampling takes with the largest capacity as with the smallest; ``load``:
        locking -> threads or processes -> number -> operation -> ``per_second`` and latency percentiles;
        ``load_ratios``: threads or processes -> number -> how many times as fast ours is as one lock held over all of
        insertion and sampling (``faster_than_global``) or over insertion alone (``faster_than_over_write``), as the
        paper's two nested ones, and as eight trees with a lock each; and how many times as long it takes as without
        locks (``time_of_none``).

    Raises:
        ValueError: ``seconds`` is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give a positive number of seconds")
    folder = environments or Path(os.environ.get(PEERS_VARIABLE) or _CHECKOUT)
    with _one_core() as core:
        about = {"core": core, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
        result = _beside_peers(_SHARES["peers"] * seconds, capacity, folder, install_peers)
        result |= {
            "machine": about,
            "fanout": _by_fanout(_SHARES["fanout"] * seconds, capacity, fanouts),
            "capacity": _by_capacity(_SHARES["capacity"] * seconds, capacities),
            "batch": _by_batch(_SHARES["batch"] * seconds, capacity, batches),
        }
    first, last = result["capacity"][str(min(capacities))], result["capacity"][str(max(capacities))]
    result["growth"] = {
        name: last[f"{name}_us"] / first[f"{name}_us"]
        for name in ("tree_sample", "tree_update", "sample", "update")
        if "absent" not in last
    }
    return result | _under_load(_SHARES["load"] * seconds, workers)


@contextlib.contextmanager
def _one_core() -> Iterator[int]:
    """Pin this thread to the last usable core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield max(cores)
    finally:
        os.sched_setaffinity(0, cores)


def _beside_peers(seconds: float, capacity: int, environments: Path, install: bool) -> dict[str, Any]:
    try:
        script = _load_script(_CHECKOUT / "benchmarks" / "replay_peers.py")
    except OSError as error:
        times = _replay_times(_filled(capacity), seconds, _BATCH)
        reason = f"peers are measured from a checkout only ({error})"
        return {**times, "peers": {"all": {"absent": reason}}, "ratio_to_best_peer": None}
    ours = script.Peer(name="rollmill", script="replay_rollmill.py", imports="rollmill.replay")
    peers, absent = [ours], {}
    for peer in script.PEERS:
        reason = "" if install else _why_not_installed(peer, environments)
        if reason:
            absent[peer.name] = {"absent": reason}
        else:
            peers.append(peer)
    length = max(seconds / (_PEER_ROUNDS * len(peers)), 0.01)
    found = script.measure(peers, capacity, _BATCH, _PEER_ROUNDS, seconds=length, environments=environments.resolve())
    own = found.pop("rollmill")
    if "absent" in own:
        raise RuntimeError(f"our own replay was not measured: {own['absent']}")
    measured = {name: result for name, result in found.items() if "absent" not in result}
    sums = [sum(result[f"{operation}_us"] for operation in _OPERATIONS) for result in measured.values()]
    mine = {f"{operation}_us": own[f"{operation}_us"] for operation in _OPERATIONS}
    return {
        **mine,
        "memory_mb": own["memory_mb"],
        "peers": found | absent,
        "ratio_to_best_peer": min(sums) / sum(mine.values()) if sums else None,
    }


def _load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollmill_replay_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def _why_not_installed(peer: Any, environments: Path) -> str:
    python = peer.python(environments)
    if not python.exists():
        return f"{python} does not exist; --install-peers creates it, --peers or {PEERS_VARIABLE} names another folder"
    done = subprocess.run([python, "-c", f"import {peer.imports}"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{python} cannot import {peer.imports}; --install-peers repairs it"


def _median_us(seconds: float, *operations: Callable[[], object]) -> list[float]:
    """Median microseconds of single calls, in turns; a fifth of the time is a warm-up."""
    times: list[list[int]] = [[] for _ in operations]
    clock = time.perf_counter_ns
    start = clock()
    warm, end = start + int(2e8 * seconds), start + int(1e9 * seconds)
    while (begin := clock()) < end or not times[0]:
        for operation, own in zip(operations, times, strict=True):
            before = clock()
            operation()
            after = clock()
            if begin >= warm or after > end:
                own.append(after - before)
    return [statistics.median(own) / 1000 for own in times]


def _transitions(count: int, generator: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "obs": generator.standard_normal((count, _OBS_SIZE), np.float32),
        "action": np.arange(count),
        "reward": generator.standard_normal(count, np.float32),
        "terminated": generator.random(count) < 0.01,
        "next_obs": generator.standard_normal((count, _OBS_SIZE), np.float32),
    }


def _filled(capacity: int) -> PrioritizedReplay:
    """A full replay with priorities of different magnitudes."""
    generator = np.random.default_rng(0)
    replay = PrioritizedReplay(
        capacity,
        {
            "obs": ((_OBS_SIZE,), "float32"),
            "action": ((), "int64"),
            "reward": ((), "float32"),
            "terminated": ((), "bool"),
            "next_obs": ((_OBS_SIZE,), "float32"),
        },
    )
    for start in range(0, capacity, 65_536):
        count = min(65_536, capacity - start)
        replay.add(**_transitions(count, generator))
        replay.update_priorities(np.arange(start, start + count), generator.standard_normal(count, np.float32))
    return replay


def _replay_times(replay: PrioritizedReplay, seconds: float, batch: int) -> dict[str, float]:
    generator = np.random.default_rng(1)
    rows = _transitions(_INSERT, generator)
    errors = generator.standard_normal(batch, np.float32)
    state: dict[str, Any] = {}

    def sample() -> None:
        state["batch"] = replay.sample(batch)

    def update() -> None:
        replay.update_priorities(state["batch"], errors)

    def insert() -> None:
        replay.add(**rows)

    medians = _median_us(seconds, sample, update, insert)
    return {f"{name}_us": value for name, value in zip(_OPERATIONS, medians, strict=True)}


def _tree_times(capacity: int, seconds: float, batch: int) -> dict[str, float]:
    generator = np.random.default_rng(1)
    tree = SumTree(mmap.mmap(-1, SumTree.nbytes(capacity)), capacity, create=True)
    for start in range(0, capacity, 65_536):
        count = min(65_536, capacity - start)
        tree.assign(np.arange(start, start + count), generator.random(count, np.float32) + np.float32(0.1))
    random = np.array([1, 0], np.uint64)
    leaves, priorities = np.empty(batch, np.int64), np.empty(batch, np.float32)
    errors = generator.standard_normal(batch, np.float32)
    sample, update = _median_us(
        seconds,
        lambda: tree.sample(random, leaves, priorities),
        lambda: tree.update(leaves, errors, alpha=0.6, epsilon=1e-6),
    )
    return {"tree_sample_us": sample, "tree_update_us": update}


def _in_rounds(cases: Sequence[str], measure: Callable[[str], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians over rounds in which all cases take turns, so that a slow moment of the machine affects all of them."""
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(_ROUNDS):
        for case in cases:
            found[case].append(measure(case))
    return {
        case: {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
        for case, rounds in found.items()
    }


def _by_fanout(seconds: float, capacity: int, fanouts: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    places = {"aligned": 0, "unaligned": _OFFSET}
    length = max(seconds / (_ROUNDS * len(fanouts) * len(places)), 0.001)

    def measure(case: str) -> dict[str, float]:
        fanout, place = case.split()
        find, update, insert = tree_alignment(
            capacity=capacity,
            fanout=int(fanout),
            offset=places[place],
            batch=_BATCH,
            inserted=_INSERT,
            seconds=length,
        )
        return {"find_us": find, "update_us": update, "insert64_us": insert}

    times = _in_rounds([f"{fanout} {place}" for fanout in fanouts for place in places], measure)
    return {str(fanout): {place: times[f"{fanout} {place}"] for place in places} for fanout in fanouts}


def _by_capacity(seconds: float, capacities: Sequence[int]) -> dict[str, dict[str, Any]]:
    length = seconds / (2 * len(capacities))
    result: dict[str, dict[str, Any]] = {}
    for capacity in capacities:
        try:
            replay = _filled(capacity)
        except NotEnoughMemory as error:
            result[str(capacity)] = {"absent": str(error)}
            continue
        times = _replay_times(replay, length, _BATCH)
        result[str(capacity)] = {**_tree_times(capacity, length, _BATCH), **times, "nbytes": replay.nbytes}
    return result


def _by_batch(seconds: float, capacity: int, batches: Sequence[int]) -> dict[str, dict[str, float]]:
    replay = _filled(capacity)
    length = max(seconds / (_ROUNDS * len(batches)), 0.001)
    return _in_rounds([str(batch) for batch in batches], lambda case: _replay_times(replay, length, int(case)))


def _under_load(seconds: float, workers: Sequence[int]) -> dict[str, Any]:
    """Throughput of several threads and processes at once: figure 10 of the paper."""
    length = max(seconds / (_ROUNDS * len(_LOCKINGS) * 2 * len(workers)), 0.01)
    load: dict[str, Any] = {locking: {"threads": {}, "processes": {}} for locking in _LOCKINGS}
    ratios: dict[str, Any] = {"threads": {}, "processes": {}}
    for count in workers:
        for kind in ("threads", "processes"):
            rounds = [
                {
                    locking: replay_load(
                        locking,
                        count,
                        processes=kind == "processes",
                        seconds=length,
                        capacity=_LOAD_CAPACITY,
                        row_bytes=_LOAD_ROW_BYTES,
                    )
                    for locking in _LOCKINGS
                }
                for _ in range(_ROUNDS)
            ]
            for locking in _LOCKINGS:
                load[locking][kind][str(count)] = _medians([found[locking] for found in rounds])
            # Each worker inserts, samples and updates in turn, so that insertions count the turns.
            turns = [{locking: found[locking]["insert"]["per_second"] for locking in _LOCKINGS} for found in rounds]
            ratios[kind][str(count)] = {
                **{
                    f"faster_than_{locking}": statistics.median(t["robust"] / t[locking] for t in turns)
                    for locking in ("nested", "sharded", "global", "over_write")
                },
                "time_of_none": statistics.median(t["none"] / t["robust"] for t in turns),
            }
    return {"load": load, "load_ratios": ratios}


def _medians(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        operation: {name: statistics.median(found[operation][name] for found in rounds) for name in figures}
        for operation, figures in rounds[0].items()
    }

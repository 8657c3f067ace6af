"""Compares the choice of ``rollmill tune`` with an exhaustive search by real runs.

Every allocation of a small grid takes turns of a second with the preset's own, because a shared machine changes
its speed; then the best of the grid and tune's choice take turns together, twice, so that the maximum of many noisy
figures does not decide.

    python benchmarks/tuning.py --seconds 60 --output tuning.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median

import rollmill
from rollmill.api import make_config
from rollmill.benchmarking.stepping import TooShortError
from rollmill.regimes.starting import probe
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.events import ProcessFailed
from rollmill.runtime.supervisor import Supervisor
from rollmill.tuning.model import Allocation
from rollmill.tuning.settings import allocation_of, settings_of
from rollmill.tuning.trials import Slice, trial

CASES = (
    ("atari/breakout", None),
    ("gym/CartPole-v1", None),
    ("mujoco/HalfCheetah-v5", "sac"),
    ("atari/pong", "dqn"),
)
_FINALISTS = 3
_FINAL_TURNS = 12


def grid(preset: Allocation, cores: int, most_policy_workers: int) -> Iterator[Allocation]:
    """Allocations of the preset's environments; where it has few, also of more of them."""
    few = preset.num_envs < 2 * cores
    for num_envs, groups, workers, policy_workers, learner_cores in itertools.product(
        (preset.num_envs, 4 * preset.num_envs) if few else (preset.num_envs,),
        sorted({1, 2, 4, cores, 2 * cores}),
        range(1, cores + 1),
        range(1, most_policy_workers + 1),
        range(1, cores + 1),
    ):
        if num_envs % groups == 0 and workers <= groups and policy_workers <= groups:
            yield Allocation(workers, policy_workers, learner_cores, num_envs, num_envs // groups)


def compare(name: str, algo: str | None, *, seconds: float, rounds: int, most_policy_workers: int) -> dict[str, object]:
    """One case."""
    config = make_config(name, algo=algo).resolved()
    preset = allocation_of(config)

    def started(allocation: Allocation) -> AbstractContextManager[Callable[[float], Slice]]:
        return trial(make_config(name, settings_of(allocation, config), algo=algo).resolved(), probed)

    begun = time.monotonic()
    tuning = rollmill.tune(name, algo=algo, seconds=seconds, say=lambda text: print(f"  {text}", flush=True))
    tune_s = time.monotonic() - begun
    print(tuning.describe(), flush=True)
    with Supervisor() as supervisor:
        probed = probe(supervisor, config)
    begun = time.monotonic()
    found: dict[Allocation, float] = {preset: 1.0}
    with started(preset) as reference:
        for allocation in grid(preset, usable_cores(), most_policy_workers):
            if allocation in found:
                continue
            try:
                with started(allocation) as other:
                    pairs = [(other(1.0), reference(1.0)) for _ in range(rounds)]
            except (TooShortError, ProcessFailed, ValueError) as error:
                print(f"  {tuple(allocation)}: {error}", flush=True)
                continue
            found[allocation] = median(a.steps_per_second / b.steps_per_second for a, b in pairs)
            print(f"  {tuple(allocation)}: {found[allocation]:.2f} of the preset's own", flush=True)
    exhaustive_s = time.monotonic() - begun
    best = sorted(found, key=lambda allocation: -found[allocation])[:_FINALISTS]
    final = [tuning.allocation, *(a for a in best if a != tuning.allocation)]

    def speeds() -> list[list[float]]:
        """Of the finalists, turn by turn, in processes of their own."""
        with ExitStack() as stack:
            trials = [stack.enter_context(started(allocation)) for allocation in final]
            rows: list[list[float]] = []
            for turn in range(_FINAL_TURNS):
                # Reverse the order in every second turn.
                order = trials if turn % 2 == 0 else trials[::-1]
                row = [each(1.0).steps_per_second for each in order]
                rows.append(row if turn % 2 == 0 else row[::-1])
            return rows

    # The fastest is found in one half of the turns and measured in the other, else luck counts for it twice: a turn's,
    # and that of where its processes came to lie.
    found_in, measured_in = speeds(), speeds()
    fastest = max(range(len(final)), key=lambda i: median(row[i] / row[0] for row in found_in))
    turns = sorted(row[0] / row[fastest] for row in measured_in)
    return {
        "preset": name,
        "algo": algo,
        "tuned": tuning.allocation._asdict(),
        "tuned_over_preset": tuning.gain,
        "tuned_steps_per_second": median(row[0] for row in measured_in),
        "best": final[fastest]._asdict(),
        "tuned_over_best": median(turns),
        "tuned_over_best_quartiles": (turns[len(turns) // 4], turns[-1 - len(turns) // 4]),
        "load": os.getloadavg()[1],
        "tune_seconds": tune_s,
        "exhaustive_seconds": exhaustive_s,
        "allocations": len(found),
        "cores": usable_cores(),
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compares rollmill tune with an exhaustive search by real runs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="that tune gets (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each allocation of the grid (default 3)")
    parser.add_argument("--policy-workers", type=int, default=2, help="of the grid, at most (default 2)")
    parser.add_argument("--only", help="one preset")
    parser.add_argument("--output", type=Path, help="also write the results here, as JSON")
    arguments = parser.parse_args()
    results = []
    for name, algo in CASES:
        if arguments.only in (None, name):
            results.append(
                compare(
                    name,
                    algo,
                    seconds=arguments.seconds,
                    rounds=arguments.rounds,
                    most_policy_workers=arguments.policy_workers,
                )
            )
            print(json.dumps(results[-1]), flush=True)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

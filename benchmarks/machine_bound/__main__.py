"""Measure the machine's bound, alone or between slices of training; the result is JSON.

    python -m benchmarks.machine_bound kernels atari --seconds 20
    python -m benchmarks.machine_bound train atari/breakout --seconds 60 --num-envs 128

A shared machine changes its speed within seconds. Training is therefore measured in slices of ten seconds, and paused
before, between and after them for a round of the bound. ``efficiency`` is the speed as a share of the bound measured
alone, ``efficiency_loaded`` of the one with all cores at work.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.machine_bound.bound import KINDS, measure_bound
from benchmarks.machine_bound.preset_bound import meter_for

from rollmill.api import make_config
from rollmill.benchmarking.train import measure_training
from rollmill.settings.options import parse_overrides

_SLICE_S = 10.0
# Of the seconds of training: for finding the fastest kernels, and for all rounds of the bound.
_SEARCH_SHARE = 0.15
_BOUND_SHARE = 0.45


def train(preset: str, *, seconds: float, overrides: Mapping[str, object]) -> dict[str, Any]:
    """Train for a warm-up and ``seconds`` that count, with rounds of the bound between the slices."""
    # The kernels of the bound run on the CPU.
    on_the_cpu = {"learner.device": "cpu", "inference.device": "cpu"}
    config = make_config(preset, {**on_the_cpu, **overrides}).resolved()
    slices = max(1, round(seconds / _SLICE_S))
    with meter_for(config) as meter:

        def measure_round() -> None:
            meter.measure_round(_BOUND_SHARE * seconds / (slices + 1))

        meter.choose_variants(_SEARCH_SHARE * seconds)
        measure_round()
        training = measure_training(config, seconds, slices=slices, between=measure_round)
        measure_round()
        # The mean, not the median: what disturbed a round also disturbed the slices next to it.
        bound = meter.bound(fmean)
    steps = training.steps_per_second
    return {
        "preset": preset,
        "efficiency": steps / bound.bound_steps_per_second,
        "efficiency_loaded": steps / bound.bound_loaded_steps_per_second,
        "bound": bound.as_dict(),
    } | training._asdict()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine_bound")
    commands = parser.add_subparsers(dest="command", required=True)
    kernels = commands.add_parser("kernels", help="the bound alone")
    kernels.add_argument("kind", choices=tuple(KINDS))
    kernels.add_argument("--seconds", type=float, default=20.0)
    kernels.add_argument("--epochs", type=int, default=1)
    training = commands.add_parser("train", help="training and the bound; accepts settings as `rollmill train` does")
    training.add_argument("preset")
    training.add_argument("--seconds", type=float, default=60.0)
    arguments, words = parser.parse_known_args()
    if arguments.command == "train":
        result = train(arguments.preset, seconds=arguments.seconds, overrides=parse_overrides(words))
    elif words:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    else:
        result = measure_bound(arguments.kind, arguments.seconds, epochs=arguments.epochs).as_dict()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

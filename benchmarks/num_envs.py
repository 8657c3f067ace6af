"""Training's speed against the number of environments: python benchmarks/num_envs.py atari/breakout --plot FILE.png.

Every number of environments is measured once in a round, round after round, so that a slow minute of the machine hits
all of them; medians are reported. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import rollmill
from rollmill.benchmarking.train import measure_training


def draw(preset: str, rates: dict[int, list[float]], lags: dict[int, list[float]], path: Path) -> None:
    """Steps a second (medians, all rounds as dots) and policy lag over the number of environments."""
    from matplotlib import pyplot

    figure, (speed, lag) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    numbers = sorted(rates)
    for axes, values, label in ((speed, rates, "steps/s"), (lag, lags, "mean policy lag (SGD steps)")):
        axes.plot(numbers, [median(values[n]) for n in numbers], color="#0072B2")
        for number in numbers:
            axes.plot([number] * len(values[number]), values[number], ".", color="#8C8C8C")
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(n) for n in numbers])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("environments")
        axes.set_ylabel(label)
    figure.suptitle(preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default="atari/breakout")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256], metavar="N")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement, after ten of warm-up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="draw a PNG")
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = {number: [] for number in arguments.num_envs}
    lags: dict[int, list[float]] = {number: [] for number in arguments.num_envs}
    for _ in range(arguments.rounds):
        for number in arguments.num_envs:
            config = rollmill.make_config(arguments.preset, {"num_envs": number}).resolved()
            training = measure_training(config, arguments.seconds)
            rates[number].append(training.steps_per_second)
            lags[number].append(training.policy_lag_mean)
            print(f"{number} environments: {training.steps_per_second:,.0f} steps/s", flush=True)
    if arguments.plot is not None:
        draw(arguments.preset, rates, lags, arguments.plot)
    result: dict[str, Any] = {
        str(number): {"steps_per_second": median(rates[number]), "policy_lag_mean": median(lags[number])}
        for number in arguments.num_envs
    }
    print(json.dumps({"preset": arguments.preset, "num_envs": result}))


if __name__ == "__main__":
    main()

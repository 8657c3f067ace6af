"""What events of population-based training cost: speed of eight policies with and without them, in turns.

    python benchmarks/pbt_cost.py --preset gym/CartPole-v1 --rounds 3 --seconds 30 --json [--KEY VALUE ...]

Both runs are alike (windows of results, generations and numbers included) until the first event, which comes after the
measurement in one of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import rollmill
from rollmill.pbt.history import read_history
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.options import parse_overrides

SETTINGS: dict[str, object] = {
    "population.policies": 8,
    "population.pbt": True,
    "pbt.window": 20,
    "num_envs": 128,
    "total_steps": 10**9,
}
NEVER = 10**12
WARM_UP_S = 10.0


def main() -> int:
    """Measure, and print the ratio of the speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gym/CartPole-v1")
    parser.add_argument("--every", type=int, default=40_000, help="agent steps of a policy between its events")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    speeds: dict[str, list[float]] = {"events": [], "none": []}
    events = 0
    for turn in range(arguments.rounds):
        for name in ("events", "none") if turn % 2 == 0 else ("none", "events"):
            settings = {
                **SETTINGS,
                "pbt.every": arguments.every,
                "pbt.start": arguments.every if name == "events" else NEVER,
                "max_seconds": WARM_UP_S + arguments.seconds,
                "seed": turn + 1,
                **parse_overrides(rest),
            }
            with tempfile.TemporaryDirectory(prefix="rollmill-pbt-") as folder:
                run = rollmill.train(arguments.preset, run_dir=Path(folder) / "run", quiet=True, **settings)
                rows = [row for row in read_metrics(run.dir) if row["time_s"] >= WARM_UP_S]
                events += len(read_history(run.dir)) if name == "events" else 0
            steps, seconds = (rows[-1][key] - rows[0][key] for key in ("agent_steps", "time_s"))
            speeds[name].append(steps / seconds)
            if not arguments.json:
                print(f"round {turn + 1}, {name}: {steps / seconds:,.0f} steps/s", flush=True)
    means = {name: statistics.fmean(found) for name, found in speeds.items()}
    print(
        json.dumps({"preset": arguments.preset, **speeds, "number": events, "ratio": means["events"] / means["none"]})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

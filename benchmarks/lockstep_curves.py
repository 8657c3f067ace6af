"""What moves a learning curve, and what does not: the number of workers, and a slow learner.

    python benchmarks/lockstep_curves.py workers          # 1, 2 and 4 rollout workers in lockstep
    python benchmarks/lockstep_curves.py slow_learner     # Cleanba's study: a learner that sleeps 1 s in each update

Interrupted runs are resumed, and complete ones are not repeated. Draws ``<study>.png`` into ``--plots``. The last line
is JSON: for each run its steps, seconds, last mean return of 100 episodes and the SHA-256 of its parameters;
and ``equal``: which runs have the same ones, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import curve_of, overlay
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Study:
    """Runs that differ in one thing.

    Attributes:
        title: Of the picture.
        runs: Name -> settings.
        algo: See :func:`rollmill.train`.
    """

    title: str
    runs: Mapping[str, Settings]
    algo: str | None = None


# The same algorithm in both regimes, with the settings that benchmarks/learning.py has for IMPALA.
_IMPALA: Settings = {"num_envs": 64, "learner.batch_size": 1_280, "learner.minibatches": 8}
_LOCKSTEP: Settings = {"regime": "lockstep", "lag": 1}
_SLOW: Settings = {"learner.slow_down_s": 1.0}

STUDIES = {
    "workers": Study(
        "lockstep, lag 1: rollout workers",
        {f"{n} workers" if n > 1 else "1 worker": {**_LOCKSTEP, "rollout.num_workers": n} for n in (1, 2, 4)},
    ),
    "slow_learner": Study(
        "IMPALA: a learner that takes 1 s longer for each update",
        {
            "lockstep": {**_IMPALA, **_LOCKSTEP},
            "lockstep, slow": {**_IMPALA, **_LOCKSTEP, **_SLOW},
            "async": {**_IMPALA, "regime": "async"},
            "async, slow": {**_IMPALA, "regime": "async", **_SLOW},
        },
        algo="impala",
    ),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8C8C8C")


def train(study: Study, preset: str, total_steps: int, seed: int, run_dir: Path, settings: Settings) -> dict[str, Any]:
    """Train or resume; Ctrl-C and SIGTERM end the program."""
    begun = (run_dir / "config.json").exists()
    rows = read_metrics(run_dir) if begun else []
    if not rows or rows[-1]["agent_steps"] < total_steps:
        run = rollmill.train(
            preset,
            total_steps=total_steps,
            seed=seed,
            run_dir=run_dir,
            resume=begun and any((run_dir / "checkpoints").glob("*.pt")),
            quiet=True,
            algo=None if begun else study.algo,
            **settings,
        )
        if run.ended_by == "signal":
            raise KeyboardInterrupt
    rows = read_metrics(run_dir)
    returns = [row["episode_return"] for row in rows if row["episode_return"] is not None]
    lags = [row["policy_lag_mean"] for row in rows if row["policy_lag_histogram"]]
    model = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state["model"]
    digest = hashlib.sha256()
    for name in sorted(model):
        digest.update(model[name].contiguous().view(-1).numpy().tobytes())
    return {
        "agent_steps": rows[-1]["agent_steps"],
        "seconds": round(rows[-1]["time_s"], 1),
        "episode_return": returns[-1] if returns else None,
        "policy_lag_mean": statistics.mean(lags) if lags else 0.0,
        "sha256": digest.hexdigest(),
    }


def draw(study: Study, run_dirs: Mapping[str, Sequence[Path]], output: Path) -> None:
    """Return over agent steps; the band of several seeds goes from the worst to the best."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.add_subplot(title=study.title, xlabel="agent steps", ylabel="mean return of 100 episodes")
    for number, (name, folders) in enumerate(run_dirs.items()):
        band = overlay([curve_of(read_metrics(folder), "agent_steps", "episode_return") for folder in folders])
        # Curves that lie on each other are all to be seen: each is thinner than the one before.
        width = 1.5 + 2.0 * (len(run_dirs) - 1 - number)
        axes.plot(band.x, band.mean, color=COLOURS[number], linewidth=width, label=name)
        if len(folders) > 1:
            axes.fill_between(band.x, band.low, band.high, color=COLOURS[number], alpha=0.2, linewidth=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, metavar="STUDY", help=" or ".join(STUDIES))
    parser.add_argument("--preset", default="atari/breakout", help="what is trained (default: %(default)s)")
    parser.add_argument("--total-steps", type=float, default=5e5, help="agent steps of each run (default: 5e5)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds (default: 1)")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="these runs of the study alone, by name")
    parser.add_argument("--out", type=Path, default=Path("runs/lockstep_curves"), help="where runs are kept")
    parser.add_argument("--plots", type=Path, help="draw the curves into this folder")
    arguments = parser.parse_args()
    study = STUDIES[arguments.study]
    if unknown := set(arguments.only or ()) - set(study.runs):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; {arguments.study} has {', '.join(study.runs)}")
    results: dict[str, dict[str, Any]] = {}
    same: dict[tuple[int, str], list[str]] = defaultdict(list)
    run_dirs: dict[str, list[Path]] = defaultdict(list)
    for seed in arguments.seeds:
        for name in arguments.only or study.runs:
            folder = arguments.out / arguments.study / f"{name.replace(', ', '-').replace(' ', '-')}-seed-{seed}"
            result = train(study, arguments.preset, int(arguments.total_steps), seed, folder, study.runs[name])
            print(f"{name}, seed {seed}: {result}", flush=True)
            results[f"{name}, seed {seed}"] = result
            same[seed, result["sha256"]].append(name)
            run_dirs[name].append(folder)
    if arguments.plots is not None:
        draw(study, run_dirs, arguments.plots / f"lockstep_{arguments.study}.png")
    equal = [{"seed": seed, "runs": names} for (seed, _), names in same.items() if len(names) > 1]
    print(json.dumps({"runs": results, "equal": equal}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

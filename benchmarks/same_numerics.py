"""Does a refactoring leave the numbers alone? Lockstep runs of two checkouts, compared bit for bit after each update.

    git worktree add ../before COMMIT && make -C ../before install
    python benchmarks/same_numerics.py ../before

Each configuration is trained by both checkouts, each with the Python of its own ``.venv``. A fingerprint covers what an
update learned from, step by step, and the network and the optimiser after it (:mod:`rollmill.learning.fingerprints`).
The exit status is 1 if one differs; the last line is JSON: updates that were compared and whether they are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        preset: What is trained.
        settings: Over the preset's; a batch is one rollout of all environments.
        algo: "ppo", "impala" or the preset's own.
        ranks: Programs that learn together.
    """

    preset: str
    settings: Mapping[str, object]
    algo: str | None = None
    ranks: int = 1


_SMALL: Mapping[str, object] = {"num_envs": 8, "envs_per_group": 2, "rollout_length": 16, "learner.batch_size": 128}
_LEARNING: Mapping[str, object] = {"learner.minibatches": 2, "learner.epochs": 2}

CASES: Mapping[str, Case] = {
    "Atari CNN, lag 1": Case("atari/breakout", {**_SMALL, **_LEARNING, "lag": 1}),
    "MLP, lag 0": Case("gym/CartPole-v1", {**_SMALL, **_LEARNING, "lag": 0}),
    "MLP, lag 3, normalised": Case(
        "gym/CartPole-v1",
        {
            **_SMALL,
            **_LEARNING,
            "lag": 3,
            "inference.num_workers": 2,
            "model.normalise_observations": True,
            "model.normalise_returns": True,
        },
    ),
    "GRU, lag 1": Case("gym/CartPole-v1", {**_SMALL, **_LEARNING, "lag": 1, "model.core": "gru"}),
    "Box actions, lag 1": Case("gym/Pendulum-v1", {**_SMALL, **_LEARNING, "lag": 1, "learner.schedule": "kl"}),
    "IMPALA on pictures, lag 1": Case("atari/pong", {**_SMALL, "learner.minibatches": 2, "lag": 1}, algo="impala"),
    "IMPALA with an LSTM, lag 3": Case(
        "gym/CartPole-v1",
        {**_SMALL, "learner.minibatches": 2, "lag": 3, "model.core": "lstm", "model.normalise_returns": True},
        algo="impala",
    ),
    "GRU, clipped values, lag 1": Case(
        "gym/CartPole-v1", {**_SMALL, **_LEARNING, "lag": 1, "model.core": "gru", "learner.value_clip": 0.2}
    ),
    "V-trace with PopArt, lag 1": Case(
        "gym/CartPole-v1",
        {**_SMALL, **_LEARNING, "lag": 1, "learner.advantage": "vtrace", "model.normalise_returns": "popart"},
    ),
    "checkpoints, environments built again": Case(
        "gym/CartPole-v1",
        {
            **_SMALL,
            **_LEARNING,
            "lag": 1,
            "model.core": "gru",
            "checkpoint.every_steps": 256,
            "checkpoint.save_environments": False,
        },
    ),
    "double precision": Case("gym/CartPole-v1", {**_SMALL, **_LEARNING, "lag": 1, "learner.precision": "fp64"}),
    "two ranks": Case("gym/CartPole-v1", {**_SMALL, **_LEARNING, "lag": 1}, ranks=2),
}


def fingerprints(checkout: Path, case: Case, updates: int, folder: Path) -> list[dict[str, Any]]:
    """One entry for each update of a run by this checkout."""
    settings = {
        **case.settings,
        "regime": "lockstep",
        "total_steps": updates * 128,
        "debug_fingerprints": True,
        "rollout.num_workers": 2,
    }
    folder.mkdir(parents=True)
    file = folder / "settings.json"
    file.write_text(json.dumps(settings))
    python = checkout / ".venv/bin/python"
    launcher = ["-m", "rollmill"]
    if case.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}", *launcher]
    command = [str(python), *launcher, "train", case.preset, "--quiet", "--run-dir", str(folder / "run")]
    command += ["--settings", str(file), *(["--algo", case.algo] if case.algo else [])]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{checkout}: {' '.join(command)} failed:\n{finished.stdout}{finished.stderr}")
    lines = (folder / "run/fingerprints.jsonl").read_text().splitlines()
    # Rows that an autoreset made do not count as agent steps, so a run makes a few updates more.
    return [json.loads(line) for line in lines][:updates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout with a .venv of its own")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=[], help="words in the names of the cases to run")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if all(word in name for word in arguments.only)}
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, case) in enumerate(cases.items()):
            old, new = (
                fingerprints(checkout.resolve(), case, arguments.updates, Path(folder) / f"{number}-{which}")
                for which, checkout in (("old", arguments.old), ("new", ROOT))
            )
            differing = [a["update"] for a, b in zip(old, new, strict=False) if a != b]
            is_equal = not differing and len(old) == len(new) == arguments.updates
            result[name] = {"updates": min(len(old), len(new)), "equal": is_equal}
            print(f"{name:<40} {'equal' if is_equal else f'DIFFERENT from update {differing[:1]}'}", flush=True)
    print(json.dumps(result))
    if not all(case["equal"] for case in result.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Whether runs come out the same: a configuration twice, with other workers and with delays, compared by update."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.api import make_config, train
from rollmill.config import Config
from rollmill.learning.fingerprints import Difference, first_difference, read_fingerprints
from rollmill.options import full_keys

__all__ = ["Verification", "verify"]

DELAY_S = 0.05


@dataclass(frozen=True)
class Verification:
    """What a comparison found.

    Attributes:
        updates: Updates that both runs made.
        hash_a: SHA-256 over everything that the first run learned from and what became of the network, in hexadecimal.
        hash_b: The second run's.
        equal: Whether they are the same.
        difference: Where they part, or None.
        workers_a: Rollout workers and policy workers of the first run, which nothing delays.
        workers_b: Those of the second run, every process of which is delayed at random.
    """

    updates: int
    hash_a: str
    hash_b: str
    equal: bool
    difference: Difference | None
    workers_a: tuple[int, int]
    workers_b: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.difference
        return asdict(self) | {"difference": None if found is None else found._asdict()}

    def describe(self) -> str:
        """In words."""
        a, b = (
            f"{rollout} rollout worker(s), {policy} policy worker(s)"
            for rollout, policy in (self.workers_a, self.workers_b)
        )
        lines = [f"a: {self.hash_a}  {a}", f"b: {self.hash_b}  {b}, delayed at random"]
        if self.difference is None:
            return "\n".join([*lines, f"equal over {self.updates} updates, bit for bit"])
        update, part, step = self.difference
        where = f"update {update}" if step is None else f"update {update}, step {step} of the rollout"
        return "\n".join([*lines, f"different, first at {where}: {part} ({_MEANINGS[part]})"])


_MEANINGS = {
    "environment": "the same actions led to other observations or rewards: the environment does not follow its seed, "
    "or shares state with others",
    "inference": "the same observations led to other actions, values or probabilities",
    "learner": "the same batch led to other weights: an operation on this device is not deterministic",
}


def verify(
    preset: str | Callable[..., Any],
    *,
    updates: int = 5,
    algo: str | None = None,
    delay_s: float = DELAY_S,
    say: Callable[[str], None] = lambda text: None,
    **overrides: object,
) -> Verification:
    """Trains twice, and compares.

    Args:
        preset: What to train, as for :func:`rollmill.train`.
        updates: Batches to learn from.
        algo: See :func:`rollmill.train`.
        delay_s: Longest of the second run's delays.
        say: Gets a line before each run.
        **overrides: Settings; the regime is "lockstep" unless they say otherwise.

    Raises:
        ValueError: The configuration cannot be used, or ``updates`` is below 1.
        ProcessFailed: A run failed.
    """
    if updates < 1:
        raise ValueError(f"updates={updates}: give at least 1")
    config = make_config(preset, {"regime": "lockstep", **overrides}, algo=algo)
    given = full_keys(config, {"regime": "lockstep", **overrides})
    settings: dict[str, Any] = given | {
        "total_steps": updates * config.learner.batch_size,
        "debug_fingerprints": True,
        "max_seconds": None,
        "eval_every": None,
        "wandb_project": None,
        "target_return": None,
    }
    workers_a, workers_b = _workers(config)
    with tempfile.TemporaryDirectory(prefix="rollmill-verify-") as folder:
        runs = []
        for name, (rollout, policy), delay in (("a", workers_a, 0.0), ("b", workers_b, delay_s)):
            say(f"run {name}: {rollout} rollout worker(s), {policy} policy worker(s), delays of up to {delay} s")
            spread = {"rollout.num_workers": rollout, "inference.num_workers": policy, "debug_delay_s": delay}
            run_dir = Path(folder) / name
            train(preset, run_dir=run_dir, quiet=True, algo=algo, **(settings | spread))
            runs.append(read_fingerprints(run_dir))
    a, b = runs
    made = min(len(a), len(b))
    difference = first_difference(a, b)
    hash_a, hash_b = a[made - 1]["chain"], b[made - 1]["chain"]
    return Verification(made, hash_a, hash_b, hash_a == hash_b, difference, workers_a, workers_b)


def _workers(config: Config) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rollout workers, policy workers) of the two runs: as few as possible, and about two of each."""
    resolved = config.resolved()
    assert resolved.envs_per_group != "auto"
    num_groups = resolved.num_envs // resolved.envs_per_group
    num_batches = num_groups // resolved.inference.groups_per_batch
    return (1, 1), (min(2, num_groups), min(2, num_batches))

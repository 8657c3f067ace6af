"""Verification that runs are reproducible: one configuration twice, with other workers, delays and a resume."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.api import make_config, train
from rollmill.learning.fingerprints import Difference, first_difference, read_fingerprints
from rollmill.settings.config import Config
from rollmill.settings.options import full_keys
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.checkpoint_file import read_header
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

DELAY_S = 0.05


@dataclass(frozen=True)
class Verification:
    """The result of a comparison.

    Attributes:
        regime: The regime that was compared: "lockstep" or "async".
        updates: Number of compared updates: the requested number, or fewer if a run made fewer.
        hash_a: SHA-256 of all data of the first run's updates and of the networks after them, in hexadecimal.
        hash_b: The second run's.
        equal: Whether they are the same.
        difference: The first difference, or None. Outside of lockstep its part is "batch": the batches contain
            different samples, so its cause is unknown.
        workers_a: Rollout workers and policy workers of the first run, which is not delayed.
        workers_b: Those of the second run, whose processes are delayed at random.
        resumed_from: The update from which the second run was resumed, as if it had been interrupted; 0 if it was not.
        policy: Name of the policy that differs; empty if none does, or if there is one policy.
    """

    regime: str
    updates: int
    hash_a: str
    hash_b: str
    equal: bool
    difference: Difference | None
    workers_a: tuple[int, int]
    workers_b: tuple[int, int]
    resumed_from: int
    policy: str = ""

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
        again = f", resumed from update {self.resumed_from}" if self.resumed_from else ""
        lines = [f"a: {self.hash_a}  {a}", f"b: {self.hash_b}  {b}, delayed at random{again}"]
        if self.difference is None:
            return "\n".join([*lines, f"equal over {self.updates} updates, bit for bit"])
        update, part, step = self.difference
        where = f"update {update}" if step is None else f"update {update}, step {step} of the rollout"
        where += f" of policy {self.policy}" if self.policy else ""
        meaning = _MEANINGS[part]
        if part == "environment" and update == self.resumed_from > 0:
            meaning += f"; {_AFTER_RESUMING}"
        return "\n".join([*lines, f"different, first at {where}: {part} ({meaning})"])


_MEANINGS = {
    "environment": "the same actions led to other observations or rewards: the environment does not follow its seed, "
    "or shares state with others",
    "inference": "the same observations led to other actions, values or probabilities",
    "learner": "the same batch led to other weights: an operation on this device is not deterministic",
    "batch": "the async regime learns from whichever slots were completed first, so two runs are expected to differ, "
    "and the difference says nothing about the environment, inference or the learner; compare with --regime lockstep, "
    "which is reproducible",
}
_AFTER_RESUMING = (
    "or, as the run was resumed here, it does not go on as before when it is pickled and unpickled, which "
    "checkpoint.save_environments=false spares it"
)


def verify(
    preset: str | Callable[..., Any],
    *,
    updates: int = 5,
    algo: str | None = None,
    protocol: str | None = None,
    delay_s: float = DELAY_S,
    say: Callable[[str], None] = lambda text: None,
    **overrides: object,
) -> Verification:
    """Train twice and compare; in lockstep the second run is also resumed from half way.

    Args:
        preset: What to train, as for :func:`rollmill.train`.
        updates: Updates of each run.
        algo: See :func:`rollmill.train`.
        protocol: See :func:`rollmill.train`.
        delay_s: Longest delay of the second run.
        say: Receives a line before each run.
        **overrides: Settings; the regime is "lockstep" unless they say otherwise. "async" may be given to see how its
            runs differ.

    Raises:
        ConfigError: The configuration is invalid, ``updates`` is below 1, or the regime is "replay".
        ProcessFailed: A run failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended a run.
    """
    if updates < 1:
        raise ConfigError(f"updates={updates}: give at least 1")
    config = make_config(preset, {"regime": "lockstep", **overrides}, algo=algo, protocol=protocol)
    if config.in_replay:
        raise ConfigError(
            "regime='replay' cannot be verified: its learner draws from whatever was stored first, so no two runs are "
            "equal; give regime='lockstep' (reproducible) or 'async'; `rollmill report` compares runs of a replay"
        )
    given = full_keys(config, {"regime": "lockstep", **overrides})
    settings: dict[str, Any] = given | {
        "total_steps": updates * config.on_policy.batch_size,
        "debug_fingerprints": True,
        "max_seconds": None,
        "eval_every": None,
        "tracker": None,
        "target_return": None,
    }
    resumed_from = updates // 2 if config.in_lockstep else 0
    if resumed_from:
        settings["checkpoint.keep"] = 100  # Including the one to resume from.
        settings["checkpoint.every_steps"] = resumed_from * config.on_policy.batch_size
    workers_a, workers_b = _workers(config)
    names = config.population.names
    with tempfile.TemporaryDirectory(prefix="rollmill-verify-") as folder:
        found = []
        for name, (rollout, policy), delay in (("a", workers_a, 0.0), ("b", workers_b, delay_s)):
            say(f"run {name}: {rollout} rollout worker(s), {policy} policy worker(s), delays of up to {delay} s")
            spread = {"rollout.num_workers": rollout, "inference.num_workers": policy, "debug_delay_s": delay}
            run_dir = Path(folder) / name
            _train(preset, run_dir=run_dir, algo=algo, protocol=protocol, **(settings | spread))
            made = _updates_of(config, run_dir)
            if name == "a" and 0 < made < updates:
                # Agents that act at the same time share an update's samples: each update has several batch sizes.
                settings["total_steps"] *= -(-updates // made)
                run_dir = Path(folder) / "a again"
                _train(preset, run_dir=run_dir, algo=algo, protocol=protocol, **(settings | spread))
            if name == "b" and resumed_from:
                say(f"run b: as if it had been interrupted, resumed from update {resumed_from}")
                for folder_of in config.population.folders(run_dir):
                    _go_back(folder_of)
                _train(run_dir=run_dir, resume=True, trust=True)
            # A run makes more updates than that where samples do not count, such as the rows that an autoreset made.
            found.append([read_fingerprints(folder_of)[:updates] for folder_of in config.population.folders(run_dir)])
    compared = min(len(updates_of) for run in found for updates_of in run)
    hash_a, hash_b = (_joined([updates_of[compared - 1]["chain"] for updates_of in run]) for run in found)
    differing = [(name, first_difference(a, b)) for name, a, b in zip(names, *found, strict=True)]
    name_of, difference = min(
        ((name, difference) for name, difference in differing if difference is not None),
        key=lambda pair: pair[1].update,
        default=("", None),
    )
    if difference is not None and not config.in_lockstep:
        difference = Difference(difference.update, "batch", None)
    return Verification(
        config.regime.name,
        compared,
        hash_a,
        hash_b,
        hash_a == hash_b,
        difference,
        workers_a,
        workers_b,
        resumed_from,
        name_of if len(names) > 1 else "",
    )


def _train(*arguments: Any, **settings: Any) -> None:
    """Train to the end."""
    if train(*arguments, quiet=True, **settings).ended_by == "signal":
        raise KeyboardInterrupt


def _updates_of(config: Config, run_dir: Path) -> int:
    """Return the updates that every policy of a run has made."""
    return min(len(read_fingerprints(folder)) for folder in config.population.folders(run_dir))


def _joined(chains: Sequence[str]) -> str:
    """Return the hash of a run from those of its policies."""
    return chains[0] if len(chains) == 1 else hashlib.sha256("".join(chains).encode()).hexdigest()


def _go_back(run_dir: Path) -> None:
    """Restore the state of a run that was killed after its first checkpoint."""
    paths = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).paths()
    of_training = sorted((header.agent_steps, path) for path in paths if (header := read_header(path)).agent_steps)
    for _, path in of_training[1:]:
        path.unlink()


def _workers(config: Config) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rollout workers, policy workers) of both runs: as few as possible, and about two of each."""
    resolved = config.resolved()
    assert resolved.envs_per_group != "auto"
    num_groups = resolved.num_envs // resolved.envs_per_group
    num_batches = num_groups // resolved.inference.groups_per_batch
    return (1, 1), (min(2, num_groups), min(2, num_batches))

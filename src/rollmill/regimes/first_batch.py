"""Notes about a late first update, and about runs that have learned nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rollmill.learning.report import LearnerReport
from rollmill.roles import ROLLOUT_WORKER, RolloutCounter
from rollmill.runtime.ledger import ProcessAccount
from rollmill.settings.config import Config
from rollmill.settings.regime_config import ReplayRegimeConfig
from rollmill.specs import EnvSpec

# Share of the remaining steps.
_LARGE_SHARE = 0.1
# Rollouts of each row; most configurations have a few per batch.
_MANY_ROLLOUTS = 100


def long_wait(config: Config, spec: EnvSpec, *, steps_done: int = 0) -> list[str]:
    """Describe a large number of agent steps before each update, or before the first one.

    Args:
        config: The resolved configuration.
        spec: The environment.
        steps_done: Agent steps of earlier sessions.
    """
    left = config.total_steps - steps_done
    if left <= 0:
        return []
    rows, policies = config.num_envs * spec.rows_per_env, len(config.population.names)
    if config.in_replay:
        if config.replay.preload:  # Recorded steps count, too: learning usually begins at once.
            return []
        wait = config.replay.min_size * policies
        if wait < _LARGE_SHARE * left:
            return []
        of_each = f", of each of {policies} policies" if policies > 1 else ""
        return [
            f"learning begins after {wait:,} agent steps (replay.min_size{of_each}), {_share(wait, left)}; a smaller "
            "replay.min_size begins earlier"
        ]
    batch, of_each = config.algorithm.batch_size, ""
    if policies > 1 and not config.in_lockstep:  # whose iteration serves all policies
        batch, of_each = sum(each.on_policy.batch_size for each in config.policies), f" for each of {policies} policies"
    if batch < _LARGE_SHARE * left and batch < _MANY_ROLLOUTS * rows * config.rollout_length:
        return []
    return [
        f"a batch{of_each} takes {batch:,} agent steps (learner.batch_size), which is {-(-batch // rows):,} steps of "
        f"each of the {rows} rows and {_share(batch, left)}; a smaller learner.batch_size learns earlier and more often"
    ]


def _share(steps: int, left: int) -> str:
    return f"{steps / left:.0%} of the {left:,} remaining"


def nothing_learned(
    config: Config,
    last: LearnerReport,
    accounts: Mapping[str, ProcessAccount],
    *,
    sgd_steps_before: int,
    why: str,
    seconds_before: float = 0.0,
) -> list[str]:
    """Return a warning for a run without an SGD step; empty if it has learned.

    Args:
        config: The resolved configuration.
        last: The learner's last report.
        accounts: The ledger at the end.
        sgd_steps_before: SGD steps of earlier sessions.
        why: The reason for the end.
        seconds_before: Training time of earlier sessions.
    """
    if last.sgd_steps > sgd_steps_before:
        return []
    limit = config.max_seconds
    if why == "max_seconds" and limit is not None and seconds_before >= limit:
        return [
            f"nothing was learned: earlier sessions of this run trained for {seconds_before:.0f} s, and max_seconds="
            f"{limit:g} counts all sessions; to continue, give a larger max_seconds, or none"
        ]
    counter = ROLLOUT_WORKER.counters[RolloutCounter.AGENT_STEPS]
    collected = int(sum(a.counters[counter] for a in accounts.values() if a.role == ROLLOUT_WORKER.name))
    begin = f"nothing was learned: the run ended ({why}) before its first SGD step. "
    if isinstance(config.regime, ReplayRegimeConfig):
        wanted = f"learning begins at replay.min_size={config.replay.min_size:,}"
        advice = "use a smaller replay.min_size, or run longer"
    elif last.lag is not None and (last.lag.stale_samples or last.lag.invalid_samples):
        wanted = (
            f"{last.lag.stale_samples:,} samples were older than learner.max_policy_lag="
            f"{config.regime.max_policy_lag} allows and {last.lag.invalid_samples:,} were not transitions"
        )
        advice = "allow more lag (learner.max_policy_lag), or use fewer environments, or run longer"
    else:
        wanted = f"a batch takes learner.batch_size={config.algorithm.batch_size:,}"
        advice = "use a smaller learner.batch_size or more environments, or run longer"
    return [f"{begin}{collected:,} agent steps were collected, and {wanted}: {advice}"]

"""Whether a sweep can compare its trials by a metric: by its name beforehand, and by the rows of finished runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from rollmill.campaigns.follow import RunFollower, metric_keys, policy_and_key
from rollmill.campaigns.jobs import CampaignError
from rollmill.reporting.metric_table import EVALUATION_GROUP, EVALUATION_KEYS, metric_names
from rollmill.settings.config import Config

# Losses of a user's own algorithm may have any name.
_OPEN_GROUP = "loss"
# What stands in the tables of metrics for a name that depends on the environment or the run.
_PLACEHOLDERS = "NAME|NUMBER"
_MOST_KEYS = 5
# Keys of evaluations that a sweep cannot go by.
_NO_NUMBERS = (
    *("env", "agent_steps", "seed", "deterministic", "video", "interval_95", "returns", "lengths"),
    *("tasks", "policies", "scores", "metrics", "against"),
)


def check_metric(metric: str, config: Config) -> None:
    """Check a metric's name.

    Args:
        metric: A key of ``metrics.jsonl``, ``evaluation/KEY``, or with several policies ``policy/NAME/evaluation/KEY``.
        config: Of the runs.

    Raises:
        CampaignError: No run can have it.
    """
    if (found := policy_and_key(metric)) is not None:
        _check_evaluation(metric, *found, config)
        return
    group, slash, _ = metric.partition("/")
    if (slash and group == _OPEN_GROUP) or any(_stands_for(name, metric) for name in metric_names()):
        return
    close = difflib.get_close_matches(metric, [*metric_names(), "evaluation/mean_return"], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/metrics.md lists all."
    raise CampaignError(f"metric={metric!r} is no key of metrics.jsonl: {hint}")


def _check_evaluation(metric: str, policy: str, key: str, config: Config) -> None:
    """Check the name of a metric of evaluations; each of several policies has evaluations of its own."""
    names = config.population.names
    if len(names) == 1 and policy:
        raise CampaignError(f"metric={metric!r}: the run has one policy; give evaluation/{key}.")
    if len(names) > 1 and policy not in names:
        allowed = " or ".join(f"policy/{name}/{EVALUATION_GROUP}/{key}" for name in names)
        raise CampaignError(f"metric={metric!r}: each of several policies has evaluations of its own; give {allowed}.")
    numbers = [name for name in EVALUATION_KEYS if name not in _NO_NUMBERS]
    if key not in numbers:
        prefix = metric.removesuffix(key)
        raise CampaignError(f"metric={metric!r}: evaluations have {', '.join(f'{prefix}{n}' for n in numbers)}.")
    if config.eval_every is None:
        raise CampaignError(f"metric={metric!r}: this run makes no evaluations; give eval_every (--eval-every).")


def check_has_metric(run_dirs: Sequence[Path], metric: str) -> None:
    """Check that one of some finished runs has reported a metric. Runs without any metrics say nothing.

    A metric that has been null only counts as reported: its name is right.

    Args:
        run_dirs: Their directories.
        metric: As in :func:`check_metric`.

    Raises:
        CampaignError: None has it.
    """
    keys = {key for run_dir in run_dirs for key in _keys_of(run_dir)}
    if not keys or metric in keys:
        return
    who = f"{run_dirs[0].name} has" if len(run_dirs) == 1 else f"all {len(run_dirs)} finished runs have"
    raise CampaignError(
        f"metric={metric!r}: {who} ended without it; {_like(metric, keys)} Repeat the command with another "
        "--metric KEY (metric='KEY'): finished runs are kept and read again. If other trials will have this one, "
        "repeat the command as it is."
    )


def _stands_for(name: str, metric: str) -> bool:
    """Whether a name in the tables of metrics covers a metric, as ``env/NAME`` covers ``env/score``."""
    return re.fullmatch(re.sub(_PLACEHOLDERS, ".+", re.escape(name)), metric) is not None


def _keys_of(run_dir: Path) -> set[str]:
    follower = RunFollower(run_dir)
    follower.update()
    return metric_keys(run_dir, follower.rows)


def _like(metric: str, keys: set[str]) -> str:
    """Say which keys may have been meant: similar ones, or else some of the same group."""
    if close := difflib.get_close_matches(metric, sorted(keys), n=3):
        return f"did you mean {' or '.join(close)}?"
    group, slash, _ = metric.partition("/")
    near = sorted(key for key in keys if slash and key.startswith(f"{group}/"))
    if not near:
        return "its metrics.jsonl has what could be compared."
    more = len(near) - _MOST_KEYS
    return f"it has {', '.join(near[:_MOST_KEYS])}{f' and {more} more' if more > 0 else ''}."

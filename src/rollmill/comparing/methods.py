"""The settings that define a method, those that differ between runs, and names of methods made from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Settings that identify a run, but do not affect training.
_IDENTITY = ("seed", "preset", "env.name", "env.imports", "tracker")
_IDENTITY_PARTS = ("tracking.",)
# Settings in which runs of one method may differ, because they do not change results beyond chance.
_SAME_METHOD = (
    *("max_seconds", "target_return", "report_every_s", "eval_every", "eval_episodes", "eval_video", "eval_against"),
    *("inference.num_workers", "inference.threads", "inference.step_timeout_s", "learner.step_timeout_s"),
)
_SAME_METHOD_PARTS = ("placement.", "rollout.", "checkpoint.", "distributed.", "debug_")
_PRECISION = "learner.precision"
# The learner's first line in a run's log: "learner: bf16, channels_last, ...". A resumed run has several.
_LOGGED_PRECISION = re.compile(r"\blearner: (fp32|bf16|fp64|fp16)\b")
_LOG_FILE = "run.log"


def settings_of_run(
    config: Mapping[str, object], run_dir: Path, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The settings of a run by dotted key, without those that identify it.

    Args:
        config: Flat configuration of the run.
        run_dir: Its directory.
        records: Its metrics.

    Returns:
        Key -> value. With ``learner.precision=auto``, the value is the precision that the run reports; a run that was
        resumed in another precision has both, as in ``"bf16, then fp32"``.
    """
    found = {
        key: value for key, value in config.items() if key not in _IDENTITY and not key.startswith(_IDENTITY_PARTS)
    }
    if found.get(_PRECISION) == "auto":
        found[_PRECISION] = _resolved_precision(run_dir, records) or "auto"
    return found


def is_of_method(key: str) -> bool:
    """Whether runs that differ in this setting belong to different methods."""
    return key not in _SAME_METHOD and not key.startswith(_SAME_METHOD_PARTS)


def _resolved_precision(run_dir: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """The precisions that the run computed in, in order; empty if neither metrics nor log report it."""
    found = [str(record["precision"]) for record in records if record.get("precision") is not None]
    if not found:
        try:
            found = _LOGGED_PRECISION.findall((run_dir / _LOG_FILE).read_text(errors="replace"))
        except OSError:
            return ""
    changes = [one for i, one in enumerate(found) if i == 0 or one != found[i - 1]]
    return ", then ".join(changes)


def differing_settings(settings: Sequence[Mapping[str, Any]], envs: Sequence[str]) -> list[str]:
    """Keys whose values differ between runs of one environment.

    Differences between the presets of different environments are not differences between methods.

    Args:
        settings: Of each run, see :func:`settings_of_run`.
        envs: The environment of each run.
    """
    by_env: dict[str, list[Mapping[str, Any]]] = {}
    for env, of_run in zip(envs, settings, strict=True):
        by_env.setdefault(env, []).append(of_run)
    keys = dict.fromkeys(key for of_run in settings for key in of_run)

    def differs(key: str, group: Sequence[Mapping[str, Any]]) -> bool:
        # A setting without effect in the regime of one run does not differ; the regime does.
        return len({repr(of_run[key]) for of_run in group if key in of_run}) > 1

    return [key for key in keys if any(differs(key, group) for group in by_env.values())]


def labels(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """For each run, the settings that distinguish its method: ``"regime=async, epochs=4"``.

    Args:
        settings: Of each run, see :func:`settings_of_run`.
        keys: Those that differ, see :func:`differing_settings`.
    """
    telling = [key for key in keys if is_of_method(key)]
    telling = telling[: _keys_needed(settings, telling)]

    def label(of_run: Mapping[str, Any]) -> str:
        return ", ".join(f"{key.rpartition('.')[2]}={of_run[key]}" for key in telling if key in of_run)

    return [label(of_run) or "rollmill" for of_run in settings]


def _keys_needed(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """The number of leading keys that distinguish as many methods as all keys do."""

    def told_apart(count: int) -> int:
        return len({tuple(repr(of_run.get(key)) for key in keys[:count]) for of_run in settings})

    return next(count for count in range(len(keys) + 1) if told_apart(count) == told_apart(len(keys)))

"""The space of allocations of a configuration, and the settings of an allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rollmill.envs.config import EnvConfig
from rollmill.envs.trust import INSTALLED_WADS, is_built_in, wrapping_code
from rollmill.runtime.signed_files import read_signed, require_trust
from rollmill.settings.config import Config
from rollmill.settings.option_values import coerce
from rollmill.settings.options import apply, full_keys
from rollmill.settings.regime_config import AsyncConfig
from rollmill.tuning.model import Allocation, Workload
from rollmill.tuning.search import Space

_FIELDS = {
    "rollout.num_workers": "rollout_workers",
    "inference.num_workers": "policy_workers",
    "num_envs": "num_envs",
    "envs_per_group": "envs_per_group",
}
# Gradients of eight learners are about seven SGD steps old. With a tau of 0.005 target networks lag by 200.
_MOST_LEARNERS = 8
LEARNER_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class SettingsFileError(ValueError):
    """A file of settings that cannot be read or written."""


def allocation_of(config: Config) -> Allocation:
    """The allocation of a resolved configuration."""
    assert config.rollout.num_workers != "auto"
    return Allocation(
        config.rollout.num_workers,
        config.inference.num_workers,
        config.num_learners * config.compute.threads,
        config.num_envs,
        config.envs_per_group,
    )


def settings_of(allocation: Allocation, config: Config) -> dict[str, int]:
    """The settings of an allocation, by dotted key."""
    settings = {
        "num_envs": int(allocation.num_envs),
        "envs_per_group": int(allocation.envs_per_group),
        "rollout.num_workers": int(allocation.rollout_workers),
        "inference.num_workers": int(allocation.policy_workers),
    }
    if config.in_replay:
        settings["learner.num_learners"] = max(1, int(allocation.learner_cores) // config.compute.threads)
    else:
        settings["learner.threads"] = int(allocation.learner_cores)
    return settings


def space_of(
    config: Config,
    workload: Workload,
    overrides: Mapping[str, object],
    cores: int,
    *,
    learner_counts: Sequence[int] = LEARNER_COUNTS,
    most_workers: int | None = None,
    keeps_group_size: bool = False,
) -> Space:
    """The space of allocations: of everything that neither the user nor the regime fixes.

    Args:
        config: Resolved, with the overrides.
        workload: Of it.
        overrides: What the user has set.
        cores: M.
        learner_counts: Candidates for the learner's threads, or for the number of learners, ascending from 1.
        most_workers: Rollout workers; by default as many as cores.
        keeps_group_size: Whether the environment is a vector of the user's, whose rows may belong together.
    """
    given = {key for key, value in full_keys(config, overrides).items() if value != "auto"}
    # On-policy, the threads of the learner vary; in replay, the number of learners.
    own, each, most = "learner.threads", 1, cores
    if config.in_replay:
        own, each, most = "learner.num_learners", config.compute.threads, _MOST_LEARNERS
        players = config.population
        if len(players.names) > 1 or players.guests or players.snapshots:
            most = 1  # Several learners share one policy.
    fields = {**_FIELDS, own: "learner_cores"}
    most_envs = None
    if config.in_replay:
        # Before learning begins every row must have a complete transition or sequence.
        most_envs = config.replay.min_size // config.replay.least_min_size(workload.rows_per_env)
    elif isinstance(config.regime, AsyncConfig):
        # While all rows fill a slot, the learner takes this many SGD steps. Samples also wait in queues, so use half of
        # max_policy_lag.
        row_steps = config.rollout_length * workload.rows_per_env
        most_envs = max(config.num_envs, int(config.regime.max_policy_lag * workload.update_interval / (2 * row_steps)))
    return Space.of(
        workload,
        allocation_of(config),
        cores,
        learner_cores=[n * each for n in learner_counts if n == 1 or (n * each <= cores and n <= most)],
        groups_multiple=config.groups_multiple,
        least_envs=-(-len(config.population.names) // workload.rows_per_env),
        workers_multiple=len(config.env.tasks) if config.task_share == "compute" and config.env.tasks else 1,
        fixed=frozenset(
            field for key, field in fields.items() if key in given or (keeps_group_size and field == "envs_per_group")
        ),
        most_envs=most_envs,
        most_workers=most_workers,
        groups_per_worker=config.rollout.groups_per_worker if "rollout.groups_per_worker" in given else None,
    )


def read_settings(path: Path | str, *, trust: bool = False) -> dict[str, Any]:
    """Read settings by dotted key from a file such as ``tuned.json``.

    Args:
        path: The file.
        trust: Whether code that it names may be executed even if ``rollmill tune`` of this user did not write it.

    Raises:
        UntrustedError: It names such code.
        OptionError: An unknown or ambiguous key.
        SettingsFileError: It cannot be read, is not a JSON object, or names a preset.
    """
    try:
        settings, verdict = read_signed(Path(path))
    except OSError as error:
        raise SettingsFileError(f"{path} cannot be read ({error.strerror}): give a file of settings.") from error
    except ValueError as error:
        raise SettingsFileError(
            f'{path} contains no settings ({error}): give a JSON object such as {{"num_envs": 64, ...}}.'
        ) from error
    require_trust(Path(path), verdict, _named_code(settings), trust=trust)
    if "preset" in settings:
        raise SettingsFileError(
            f"{path} names the preset {settings['preset']!r}: remove it from the file, and give the preset to the call."
        )
    return settings


_NAMING_CODE = (
    *("env", "env.name", "env.tasks", "env.imports", "env.kwargs", "env.vizdoom", "env.vizdoom.wad"),
    *("env.dmlab", "env.dmlab.level_cache", "env.dmlab.dataset_path"),
)


def _names(key: str, value: object) -> tuple[str, ...]:
    return cast("tuple[str, ...]", coerce(value, tuple[str, ...], key, text=isinstance(value, str)))


def _named_code(settings: Mapping[str, Any]) -> str:
    """A description of the first setting that names code, or sends the run elsewhere; empty if none does."""
    shape = Config(env=EnvConfig(name="any"))
    full = full_keys(shape, settings)
    of_trackers = {key: value for key, value in full.items() if key.partition(".")[0] in ("tracker", "tracking")}
    if services := apply(shape, of_trackers).tracking.reports_to:
        return f"it reports the run to a service ({services})"
    for key, value in full.items():
        is_argument = key.startswith("env.kwargs.")
        if is_argument and (value is None or isinstance(value, bool | int | float)):
            continue
        if key == "env.wrappers" and (reason := wrapping_code(str(value))):
            return reason
        if key == "env.vizdoom.wad" and value in INSTALLED_WADS:
            continue
        if key == "env.tasks" and all(map(is_built_in, _names(key, value))):
            continue
        if is_argument or key in _NAMING_CODE:
            return f"it sets {key} to {value!r}, which may run code"
    return ""


def under(settings: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """Merge settings of a file with ``overrides``, which take precedence in any spelling of their keys.

    Raises:
        OptionError: An unknown or ambiguous key.
    """
    shape = Config(env=EnvConfig(name="any"))
    return {**full_keys(shape, settings), **full_keys(shape, overrides)}

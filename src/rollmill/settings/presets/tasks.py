"""Presets of several tasks that one network learns, made of the presets of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import cast

from rollmill.envs.config import EnvConfig
from rollmill.settings.presets import families
from rollmill.settings.presets.families import Overrides
from rollmill.settings.presets.preset import Preset
from rollmill.settings.value_checks import ConfigError

# Fewer environments of a task would make its samples depend on a few episodes.
_FEWEST_ENVS = 4
# A forward pass for fewer rows than 16 takes nearly as long, and gradients of a task from few trajectories are noisy;
# but environments and batches take memory.
_USUAL_ENVS, _MOST_ENVS = 16, 256
_USUAL_ROWS, _MOST_ROWS = 8, 128
# Families whose pictures show which task it is.
_SHOWN = ("atari", "vizdoom", "dmlab")
_REWARDS = ("learner.reward_clip", "learner.reward_scale")


def preset_of_tasks(name: str, tasks: Sequence[Preset]) -> Preset:
    """Return the preset of several tasks.

    The settings are those of the tasks where these agree, or of their family, or the generic ones. Rewards are not
    clipped, because PopArt brings returns of all tasks to one scale (Hessel et al. 2019). A run is as long as one
    with such settings, times the number of tasks.

    Args:
        name: The name of all of them together.
        tasks: Their presets.

    Raises:
        ConfigError: A task is for several agents.
    """
    kinds = {preset.name.partition("/")[0] for preset in tasks}
    overrides = _settings_of(tasks, kinds)
    if "population.snapshots" in overrides:
        raise ConfigError(
            f"{name}: {tasks[0].name} has several agents; tasks that are learned together have one agent each. "
            "Train it in a run of its own."
        )
    settings: dict[str, object] = {
        **fitted(overrides, {}, len(tasks)),
        "learner.reward_clip": None,
        "learner.reward_scale": 1.0,
        "model.normalise_returns": "popart",
        "model.observe_task": not kinds <= set(_SHOWN),
    }
    if overrides.get("model.centre_pixels"):
        settings["model.centre_pixels"] = "each"  # Their backgrounds differ.
    return Preset(name=name, env=_env_of(name, tasks), overrides=settings)


def fitted(overrides: Overrides, present: Mapping[str, object], tasks: int) -> Overrides:
    """Return settings that were made for one environment with sizes that fit several tasks.

    Args:
        overrides: The settings.
        present: Those that they are applied over.
        tasks: How many tasks there are.
    """

    def number(key: str) -> int:
        return cast("int", overrides.get(key, present.get(key)))

    found = dict(overrides)
    if "total_steps" in overrides:
        found["total_steps"] = number("total_steps") * tasks
    envs = max(_FEWEST_ENVS, ceil(number("num_envs") / tasks))
    if overrides.get("regime") == "replay":
        return {**found, "num_envs": envs * tasks}
    envs = max(envs, min(_USUAL_ENVS, _MOST_ENVS // tasks))
    # A batch has whole trajectories of each task, as many of each. A batch that is larger has larger minibatches.
    steps, batch_size = number("rollout_length"), number("learner.batch_size")
    rows = max(ceil(batch_size / steps / tasks), min(_USUAL_ROWS, _MOST_ROWS // tasks))
    if rows > _FEWEST_ENVS:
        rows = ceil(rows / _FEWEST_ENVS) * _FEWEST_ENVS
    wanted = number("learner.minibatches")
    is_whole = overrides.get("model.core", present.get("model.core", "none")) != "none"
    is_whole |= overrides.get("learner.advantage", present.get("learner.advantage")) == "vtrace"
    divided = rows * tasks * (1 if is_whole else steps)
    # Groups whose slots hold whole shares of a batch, or of which one batch takes whole slots.
    return {
        **found,
        "num_envs": ceil(envs / rows) * rows * tasks,
        "learner.batch_size": rows * tasks * steps,
        "learner.minibatches": next(n for n in range(wanted, 0, -1) if divided % n == 0),
    }


def name_for_settings(preset: Preset) -> str:
    """Return the preset's name, or of several tasks one that has the settings of all of their family."""
    tasks = preset.env.tasks
    kinds = {name.partition("/")[0] for name in tasks}
    if not tasks:
        return preset.name
    if kinds == {"envpool"}:
        return tasks[0]
    return f"{kinds.pop()}/tasks" if len(kinds) == 1 else "tasks"


def rewards_without_popart(first: Preset) -> Overrides:
    """Return the clipping and scale of rewards for tasks in a replay, where PopArt is not used: the first task's.

    Args:
        first: The preset of the first task.
    """
    return {key: first.overrides[key] for key in _REWARDS if key in first.overrides}


def _settings_of(tasks: Sequence[Preset], kinds: set[str]) -> Overrides:
    first = tasks[0].overrides
    if all(preset.overrides == first for preset in tasks):
        return first
    if kinds == {"minigrid"}:
        return families.MINIGRID_MEMORY
    if kinds == {"vizdoom"}:
        return families.VIZDOOM
    if kinds == {"atari"}:
        return families.ATARI
    return families.GENERIC


def _env_of(name: str, tasks: Sequence[Preset]) -> EnvConfig:
    env = EnvConfig(name=name, tasks=tuple(preset.env.name for preset in tasks))
    if any(preset.env.on_failure == "restart" for preset in tasks):
        env = replace(env, on_failure="restart")
    for preset in tasks:
        if preset.name.startswith("vizdoom/"):
            env = replace(env, vizdoom=preset.env.vizdoom)
        if preset.name.startswith("dmlab/"):
            # One observation for all levels, though few have instructions.
            env = replace(env, dmlab=replace(preset.env.dmlab, instructions=True))
        if preset.name.startswith("atari/"):
            # One meaning of each action in all games.
            env = replace(env, atari=replace(env.atari, full_action_space=True))
    return env

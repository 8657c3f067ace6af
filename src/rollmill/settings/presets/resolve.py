"""Presets by name: an environment and the settings to train it with."""

from __future__ import annotations

from dataclasses import replace

from rollmill.envs import suites
from rollmill.envs.config import DmlabOptions, EnvConfig, VizdoomOptions
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.registry import find_registration, registrations
from rollmill.envs.suites import FAMILY, tasks_of
from rollmill.settings.presets import families
from rollmill.settings.presets.preset import Preset
from rollmill.settings.presets.tasks import preset_of_tasks

_MEMORY_TASKS = ("Memory", "RedBlueDoors", "ObstructedMaze", "MultiRoom", "KeyCorridor")


def resolve(name: str) -> Preset:
    """The preset of that name.

    Args:
        name: ``<family>/<id>`` with family one of ``atari``, ``vizdoom``, ``gym``, ``mujoco``, ``minigrid``,
            ``envpool``, ``pettingzoo``, ``mpe``, ``dmlab``; a name given to ``register_env``; a bare Gymnasium id; or
            several tasks, as ``suite/<name>`` or as such names joined by commas. Modules that register environments
            must have been imported.

    Raises:
        UnknownEnvironment: No such preset; the message suggests similar names.
        MissingExtra: The package of the environment is not installed.
    """
    if find_registration(name) is not None:
        return Preset(name=name, env=EnvConfig(name=name), overrides=families.GENERIC)
    if tasks := tasks_of(name):
        return preset_of_tasks(name, [resolve(task) for task in tasks])
    family, slash, id = name.partition("/")
    known = _FAMILIES.get(family) if slash else None
    if known is not None:
        return known(name, id)
    _check_bare(name)
    return _gym(f"gym/{name}", name)


def list_presets() -> list[str]:
    """Names of all presets whose packages are installed, by family, after the user's own registrations."""
    names = [entry.name for entry in registrations()]
    for family, ids in _ids().items():
        names += [f"{family}/{id}" for id in ids]
    return names + [f"{FAMILY}/{suite}" for suite in suites.names()]


def missing_families() -> dict[str, str]:
    """Family -> what to install, for families whose packages are missing."""
    missing: dict[str, str] = {}
    _ids(missing)
    return missing


def _ids(missing: dict[str, str] | None = None) -> dict[str, list[str]]:
    from rollmill.envs import atari, dmlab, envpool, gym, minigrid, pettingzoo, vizdoom

    found: dict[str, list[str]] = {}
    for family, ids in (
        ("atari", atari.games),
        ("vizdoom", vizdoom.scenarios),
        ("gym", gym.ids),
        ("mujoco", gym.mujoco_ids),
        ("minigrid", minigrid.ids),
        ("envpool", envpool.ids),
        ("pettingzoo", pettingzoo.ids),
        ("mpe", pettingzoo.mpe_ids),
        ("dmlab", dmlab.ids),
    ):
        try:
            found[family] = ids()
        except MissingExtra as error:
            found[family] = []
            if missing is not None:
                missing[family] = str(error)
    return found


def _check_bare(name: str) -> None:
    from rollmill.envs import gym
    from rollmill.envs.factory import suggest
    from rollmill.envs.module_names import explain

    if not gym.is_registered(name):
        of_module = explain(name)
        if of_module is not None:
            raise UnknownEnvironment(of_module)
        # Users often give only the last part of a preset's name.
        presets = list_presets()
        lasts = {preset.partition("/")[2].lower(): preset for preset in reversed(presets)}
        exact = lasts.get(name.lower())
        near = f"; did you mean '{exact}'?" if exact else suggest(name, presets, lasts)
        raise UnknownEnvironment(
            f"there is no preset, registered environment or Gymnasium id {name!r}{near} (`rollmill envs` lists all; "
            "your own environment is 'module:Class', or a name that a module given with --import registers with "
            "rollmill.register_env)"
        )


def _atari(name: str, id: str) -> Preset:
    from rollmill.envs.atari import check_game

    check_game(id)
    return Preset(name=name, env=EnvConfig(name=name), overrides=families.ATARI)


def _vizdoom(name: str, id: str) -> Preset:
    from rollmill.envs.doom_scenarios import SCENARIOS
    from rollmill.envs.vizdoom import check_scenario

    check_scenario(id)
    scale = families.VIZDOOM_REWARD_SCALE.get(id)
    overrides = dict(families.VIZDOOM) | ({} if scale is None else {"learner.reward_scale": scale})
    env = EnvConfig(name=name, vizdoom=VizdoomOptions(measurements=True))
    if id in SCENARIOS and SCENARIOS[id].is_match:
        overrides = dict(families.VIZDOOM_SELF_PLAY if SCENARIOS[id].players > 1 else families.VIZDOOM_MATCH)
        # An engine that was killed ends its match, not the run.
        env = replace(env, on_failure="restart")
    elif id in SCENARIOS:
        overrides = dict(families.VIZDOOM_BATTLE)
    return Preset(name=name, env=env, overrides=overrides)


def _gym(name: str, id: str) -> Preset:
    from rollmill.envs import gym

    kind = gym.kind(id)
    gym.check_installed(kind)
    if kind == "mujoco":
        return _mujoco(name, id)
    if kind == "classic_control" and id.startswith("CartPole"):
        return Preset(name=name, env=EnvConfig(name=name), overrides=families.CARTPOLE)
    return Preset(name=name, env=EnvConfig(name=name), overrides=families.GENERIC)


def _mujoco(name: str, id: str) -> Preset:
    from rollmill.envs import gym

    if (kind := gym.kind(id)) not in ("mujoco", ""):  # environments of other packages may use MuJoCo too
        raise UnknownEnvironment(f"{id} is not simulated by MuJoCo but of Gymnasium's {kind}: use 'gym/{id}'")
    gym.check_installed("mujoco")
    return Preset(name=name, env=EnvConfig(name=name), overrides=families.MUJOCO)


def _minigrid(name: str, id: str) -> Preset:
    from rollmill.envs.minigrid import check_id

    check_id(id)
    memory = any(task in id for task in _MEMORY_TASKS)
    return Preset(
        name=name, env=EnvConfig(name=name), overrides=families.MINIGRID_MEMORY if memory else families.MINIGRID
    )


def _envpool(name: str, id: str) -> Preset:
    from rollmill.envs import envpool

    overrides = {
        "atari": families.ATARI,
        "classic_control": families.CARTPOLE_POOL if id.startswith("CartPole") else families.GENERIC,
        "mujoco": families.MUJOCO,
        "vizdoom": families.VIZDOOM,
        "pgx": families.GAMES,
    }.get(envpool.kind(id), families.GENERIC)
    return Preset(name=name, env=EnvConfig(name=name), overrides=overrides)


def _pettingzoo(name: str, id: str) -> Preset:
    from rollmill.envs.pettingzoo import check_id

    check_id(name)
    kinds = {"classic": families.GAMES, "atari": families.ATARI_PLAYERS}
    overrides = kinds.get(id.partition("/")[0], families.GENERIC)
    return Preset(name=name, env=EnvConfig(name=name), overrides=overrides)


def _dmlab(name: str, id: str) -> Preset:
    from rollmill.envs.dmlab import check_level

    check_level(id)
    env = EnvConfig(name=name, dmlab=DmlabOptions(extended_actions=True))
    return Preset(name=name, env=env, overrides=families.DMLAB)


_FAMILIES = {
    "atari": _atari,
    "vizdoom": _vizdoom,
    "gym": _gym,
    "mujoco": _mujoco,
    "minigrid": _minigrid,
    "envpool": _envpool,
    "pettingzoo": _pettingzoo,
    "mpe": _pettingzoo,
    "dmlab": _dmlab,
}

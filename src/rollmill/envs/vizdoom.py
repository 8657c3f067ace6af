"""VizDoom's scenarios for one player, and matches against bots (``vizdoom/<scenario>``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from rollmill.envs.config import EnvConfig
from rollmill.envs.doom_scenarios import SCENARIOS, has_assets, missing_engine, scenario
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.extras import install_command

_DEFAULT_FRAMESKIP = 4
# Scenarios of the package whose name means a match here.
_RENAMED = {"deathmatch": "deathmatch_monsters"}
_FILE_OF = {name: file for file, name in _RENAMED.items()}
# Multiplayer scenarios.
_MULTIPLAYER = {"cig", "multi", "multi_duel"}
# Scenarios whose actions combine buttons, as in Sample Factory (Tuple spaces); the others choose one button at a time.
_HEADS = {
    "deadly_corridor",
    "deathmatch_monsters",
    "defend_the_center",
    "defend_the_line",
    "freedoom1",
    "freedoom2",
    "my_way_home",
}


def _scenarios_path() -> str:
    try:
        # The environment scales pictures with it. Its import would change LD_LIBRARY_PATH of a program that only asks
        # for names, after which the program's fork server is replaced.
        if find_spec("cv2") is None:
            raise ModuleNotFoundError("No module named 'cv2'")
        import vizdoom
    except ImportError as error:
        raise missing_engine(error) from error
    return str(vizdoom.scenarios_path)


def scenarios() -> list[str]:
    """The complete single-player scenarios of the package; raises :class:`MissingExtra` without vizdoom."""
    folder = _scenarios_path()
    found = [name for name, scenario in SCENARIOS.items() if scenario.is_match or has_assets()]
    for file in sorted(os.listdir(folder)):
        name, extension = os.path.splitext(file)
        if extension != ".cfg" or name in _MULTIPLAYER:
            continue
        with open(os.path.join(folder, file), encoding="utf-8") as lines:
            wads = [
                line.split("=", 1)[1].strip()
                for line in lines
                if line.startswith(("doom_scenario_path", "doom_game_path"))
            ]
        places = (folder, os.path.dirname(folder))
        if wads and all(any(os.path.isfile(os.path.join(place, wad)) for place in places) for wad in wads):
            found.append(_RENAMED.get(name, name))
    return sorted(found)


def check_scenario(name: str) -> None:
    """Raise :class:`UnknownEnvironment` unless the package ships the scenario."""
    known = scenarios()
    if name in SCENARIOS and name not in known:
        raise MissingExtra(f"the map of vizdoom/{name} is in the package envpool-assets: {install_command('envpool')}")
    if name not in known:
        raise UnknownEnvironment(
            f"there is no VizDoom scenario {name!r}{suggest(name, known)} (there are {', '.join(known)})"
        )


def maker(config: EnvConfig) -> Maker:
    """Build ``VizdoomEnv`` of a scenario; ``config.kwargs`` go to its constructor.

    Raises:
        UnknownEnvironment: The package ships no such single-player scenario.
        MissingExtra: vizdoom or OpenCV is not installed.
    """
    name = config.name.removeprefix("vizdoom/")
    check_scenario(name)
    from rollmill.envs.vizdoom_env import VizdoomEnv

    options = config.vizdoom
    chosen = None
    if name in SCENARIOS:
        chosen = scenario(name, packaged=_scenarios_path(), wad=options.wad, bots=options.bots, players=options.players)
    elif (options.wad, options.bots, options.players) != (None, None, None):
        raise UnknownEnvironment(f"vizdoom/{name} is no match: leave out env.vizdoom.wad, bots and players")
    frameskip = config.frameskip or (_DEFAULT_FRAMESKIP if chosen is None else chosen.frameskip)
    arguments: dict[str, Any] = {
        "config_file": f"{_FILE_OF.get(name, name)}.cfg" if chosen is None else None,
        "scenario": chosen,
        "frameskip": frameskip,
        "width": options.width,
        "height": options.height,
        "measurements": options.measurements,
        "sound": options.sound,
        "last_step": config.max_episode_steps,
        "actions": "heads" if name in _HEADS or chosen is not None else "flat",
    }
    build: Callable[..., Any] = VizdoomEnv
    if chosen is not None and chosen.players > 1:
        from rollmill.envs.doom_match import DoomMatch

        build = partial(DoomMatch, players=chosen.players)
        del arguments["config_file"], arguments["actions"]
    return Maker(
        env=partial(build, **{**arguments, **config.kwargs}),
        frameskip=frameskip,
        max_episode_steps=config.max_episode_steps,
        time_limit=config.max_episode_steps,
    )

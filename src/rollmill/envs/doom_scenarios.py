"""Doom scenarios of the Sample Factory paper that VizDoom's package has no configuration for.

Battle and Battle2 are in the package ``envpool-assets``, which comes with EnvPool. Matches against the engine's bots
take place on maps of VizDoom's package, or on any other (``env.vizdoom.wad``). Buttons, frame skips, lengths and
delays are those of Petrenko et al. 2020 (https://arxiv.org/abs/2006.11751, section A.3) and of Sample Factory 2.1.1,
whose deathmatch of four agents has four bots in addition.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace

from rollmill.envs.doom_arena import arena_path
from rollmill.envs.doom_wad import check_map
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.extras import install_command

_MOVES = ("MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_RIGHT", "MOVE_LEFT")
_WEAPONS = tuple(f"SELECT_WEAPON{number}" for number in range(1, 8))
_TURN = "TURN_LEFT_RIGHT_DELTA"
TICS_PER_SECOND = 35
_TICS_PER_MINUTE = TICS_PER_SECOND * 60
_MOST_PLAYERS = 8
_PAPER_MAPS = {
    "duel_bots": "ssl2.wad",
    "duel": "ssl2.wad",
    "deathmatch_bots": "dwango5.wad",
    "deathmatch": "freedm.wad",
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Settings of the engine for a scenario.

    Attributes:
        wad: Path of the map's file.
        map: Name of the map in it.
        buttons: Names of the buttons.
        turns: Choices of an angle, in degrees, from ``-turns[1]`` to ``turns[1]``: their number, and the largest.
        tics: Length of an episode.
        frameskip: Tics of a step.
        bots: Opponents that the engine plays.
        players: Agents of a match over the network; 1 is no such match.
        respawn_delay: Seconds before a player that was killed comes back, in a match.
        skill: The engine's difficulty, 1 to 5.
    """

    wad: str
    map: str = "map01"
    buttons: tuple[str, ...]
    turns: tuple[int, float]
    tics: int
    frameskip: int
    bots: int = 0
    players: int = 1
    respawn_delay: int = 0
    skill: int = 3

    @property
    def is_match(self) -> bool:
        """Whether players fight each other or bots."""
        return self.bots > 0 or self.players > 1


_BATTLE = Scenario(
    wad="D3_battle.wad",
    buttons=(*_MOVES, "ATTACK", "SPEED", _TURN),
    turns=(11, 10.0),
    tics=2100,
    frameskip=4,
    skill=2,
)
_MATCH = Scenario(
    wad="cig.wad",
    buttons=(*_MOVES, *_WEAPONS, "ATTACK", "SPEED", _TURN),
    turns=(21, 12.5),
    tics=4 * _TICS_PER_MINUTE,
    frameskip=2,
)
# With doors, and a pause after a death.
_DUEL = replace(
    _MATCH,
    wad="multi_duel.wad",
    buttons=(*_MOVES, *_WEAPONS, "ATTACK", "SPEED", "USE", _TURN),
    respawn_delay=2,
)
SCENARIOS: dict[str, Scenario] = {
    "battle": _BATTLE,
    "battle2": replace(_BATTLE, wad="D4_battle2.wad"),
    "deathmatch_bots": replace(_MATCH, bots=7),
    "duel_bots": replace(_DUEL, bots=1),
    "deathmatch": replace(_DUEL, wad="cig.wad", players=4),
    "duel": replace(_DUEL, players=2),
}
"""Name -> scenario, with the file's name instead of its path."""


def missing_engine(error: ImportError) -> MissingExtra:
    """Make the error for a package of VizDoom's extra that cannot be imported."""
    return MissingExtra(
        f"VizDoom scenarios need vizdoom and OpenCV, and one is not installed ({error}): {install_command('vizdoom')}"
    )


def has_assets() -> bool:
    """Whether the maps of Battle and Battle2 are installed."""
    return importlib.util.find_spec("envpool_assets") is not None


def scenario(
    name: str, *, packaged: str, wad: str | None = None, bots: int | None = None, players: int | None = None
) -> Scenario:
    """Return a scenario with the path of its map.

    Args:
        name: One of ``SCENARIOS``.
        packaged: Folder of VizDoom's own maps.
        wad: A path, ``"arena"`` for :mod:`rollmill.envs.doom_arena`, ``"paper"`` for the paper's map, or None for the
            scenario's own; ``PATH:MAP`` names a map in a file.
        bots: Number of bots; None is the scenario's.
        players: Number of agents; None is the scenario's.

    Raises:
        UnknownEnvironment: There is no such file, it is no WAD or lacks the map, or the scenario has no other map or no
            bots.
        MissingExtra: The package that has the map is not installed.
    """
    found = SCENARIOS[name]
    if wad is not None and not found.is_match:
        raise UnknownEnvironment(f"vizdoom/{name} has its own map: leave out env.vizdoom.wad")
    if bots is not None and not found.bots:
        raise UnknownEnvironment(f"vizdoom/{name} has no bots: leave out env.vizdoom.bots")
    if players is not None and found.players == 1:
        raise UnknownEnvironment(f"vizdoom/{name} has one player: leave out env.vizdoom.players")
    if players is not None and not 2 <= players <= _MOST_PLAYERS:
        raise UnknownEnvironment(f"env.vizdoom.players={players}: give 2 to {_MOST_PLAYERS}")
    if bots is not None and bots >= _MOST_PLAYERS:
        raise UnknownEnvironment(f"env.vizdoom.bots={bots}: give at most {_MOST_PLAYERS - 1}, the engine's limit")
    found = replace(found, bots=found.bots if bots is None else bots)
    found = replace(found, players=found.players if players is None else players)
    if wad is None:
        return replace(found, wad=os.path.join(packaged if found.is_match else _assets(name), found.wad))
    if wad == "arena":
        return replace(found, wad=arena_path())
    if wad == "paper":
        return replace(found, wad=_paper_map(name))
    path, colon, map_name = wad.rpartition(":")
    path, map_name = (path, map_name) if colon and not os.path.isfile(wad) else (wad, found.map)
    if not os.path.isfile(path):
        raise UnknownEnvironment(
            f"env.vizdoom.wad={wad!r}: there is no such file; give the path of a WAD, PATH:MAP, 'arena' or 'paper'"
        )
    check_map(wad, path, map_name)
    return replace(found, wad=os.path.abspath(path), map=map_name)


def _assets(name: str) -> str:
    spec = importlib.util.find_spec("envpool_assets")
    if spec is None or spec.origin is None:
        raise MissingExtra(f"the map of vizdoom/{name} is in the package envpool-assets: {install_command('envpool')}")
    return os.path.join(os.path.dirname(spec.origin), "vizdoom", "maps")


def _paper_map(name: str) -> str:
    """Return the paper's map, which may not be distributed with Rollmill."""
    spec = importlib.util.find_spec("sf_examples")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        path = os.path.join(folder, "vizdoom", "doom", "scenarios", _PAPER_MAPS[name])
        if os.path.isfile(path):
            return path
    raise MissingExtra(
        f"env.vizdoom.wad='paper': the map {_PAPER_MAPS[name]} comes with the package sample-factory, which is not "
        "installed: pip install --no-deps sample-factory"
    )

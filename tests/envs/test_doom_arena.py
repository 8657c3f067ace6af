"""The arena: its file, its geometry, and matches in it with the real engine."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.envs.config import EnvConfig, VizdoomOptions
from rollmill.envs.doom_arena import arena, arena_path, write_arena
from rollmill.envs.doom_scenarios import scenario
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import make_env, resolve_maker

Block = dict[str, Any]

PLAYER_RADIUS = 16
# Type -> class of the engine, from ZDoom's list of the things of Doom 2.
CLASSES = {
    2001: "Shotgun",
    82: "SuperShotgun",
    2002: "Chaingun",
    2003: "RocketLauncher",
    2004: "PlasmaRifle",
    2049: "ShellBox",
    2048: "ClipBox",
    2046: "RocketBox",
    17: "CellPack",
    2012: "Medikit",
    2011: "Stimpack",
    2018: "GreenArmor",
    2015: "ArmorBonus",
    2019: "BlueArmor",
}


def lumps(wad: bytes) -> dict[str, bytes]:
    kind, number, directory = struct.unpack_from("<4sii", wad)
    assert kind == b"PWAD"
    assert directory + 16 * number == len(wad)
    found = {}
    for index in range(number):
        place, size, name = struct.unpack_from("<ii8s", wad, directory + 16 * index)
        found[name.rstrip(b"\0").decode()] = wad[place : place + size]
    return found


def blocks(wad: bytes) -> dict[str, list[Block]]:
    """Read the map's text: kind of block -> its blocks."""
    found: dict[str, list[Block]] = {}
    for kind, content in re.findall(r"(\w+) \{ (.*?) \}", lumps(wad)["TEXTMAP"].decode()):
        fields = dict(re.findall(r"(\w+) = (.*?);", content))
        values = {"true": True, "false": False}
        block = {k: values[v] if v in values else v.strip('"') if v[0] == '"' else int(v) for k, v in fields.items()}
        found.setdefault(kind, []).append(block)
    return found


def ends(parts: dict[str, list[Block]], line: Block) -> tuple[tuple[int, int], tuple[int, int]]:
    first, second = (parts["vertex"][line[name]] for name in ("v1", "v2"))
    return (first["x"], first["y"]), (second["x"], second["y"])


def turned(point: tuple[int, int]) -> tuple[int, int]:
    return -point[1], point[0]


def test_the_file_is_one_map_and_the_same_for_the_same_arguments(tmp_path: Path) -> None:
    assert list(lumps(arena())) == ["MAP01", "TEXTMAP", "ENDMAP"]
    assert arena() == arena()
    assert arena(size=1024) != arena()
    write_arena(tmp_path / "a.wad", size=1024, pillars=1, rooms=False)
    assert (tmp_path / "a.wad").read_bytes() == arena(size=1024, pillars=1, rooms=False)
    assert os.listdir(tmp_path) == ["a.wad"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no"):
        write_arena(tmp_path / "a.wad")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1000}, "size=1000: give a multiple of 128 from 1024 to 4096"),
        ({"size": 8192}, "size=8192: give"),
        ({"pillars": 4}, "pillars=4: give 0 to 3"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arena(**arguments)  # type: ignore[arg-type] # the keys are those of integers


@pytest.mark.parametrize(
    "arguments",
    [{}, {"size": 1024}, {"size": 4096, "pillars": 1}, {"pillars": 0, "rooms": False}, {"pillars": 2}],
    ids=str,
)
def test_every_quarter_is_alike_and_every_thing_can_be_reached(arguments: dict[str, Any]) -> None:
    parts = blocks(arena(**arguments))
    lines = {ends(parts, line) for line in parts["linedef"]}
    assert {(turned(a), turned(b)) for a, b in lines} == lines
    things = Counter((thing["type"], thing["x"], thing["y"]) for thing in parts["thing"] if thing["type"] in CLASSES)
    assert {kind for kind, _, _ in things} == set(CLASSES)
    assert Counter((kind, *turned((x, y))) for kind, x, y in things) == things
    starts = {(t["x"], t["y"], t["angle"]) for t in parts["thing"] if t["type"] == 11}
    assert len(starts) == 12
    assert {(*turned((x, y)), (angle + 90) % 360) for x, y, angle in starts} == starts
    assert {t["type"] for t in parts["thing"]} >= {1, 2, 3, 4, 4001, 4002, 4003, 4004}
    assert all(t[key] for t in parts["thing"] for key in ("skill1", "skill3", "skill5", "single", "coop", "dm"))
    reached = reachable(parts)
    for thing in parts["thing"]:
        assert reached(thing["x"], thing["y"]), thing


def reachable(parts: dict[str, list[Block]], step: int = 8) -> Any:
    """Fill the floor from the first start; returns whether the middle of a player can come to a place."""
    half = max(vertex["x"] for vertex in parts["vertex"])
    axis = np.arange(-half, half + 1, step)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    is_free = np.ones(x.shape, bool)
    for line in parts["linedef"]:
        (x1, y1), (x2, y2) = ends(parts, line)
        if not line.get("twosided"):
            assert x1 == x2 or y1 == y2
            is_wall = (x > min(x1, x2) - PLAYER_RADIUS) & (x < max(x1, x2) + PLAYER_RADIUS)
            is_free &= ~(is_wall & (y > min(y1, y2) - PLAYER_RADIUS) & (y < max(y1, y2) + PLAYER_RADIUS))
    start = next(thing for thing in parts["thing"] if thing["type"] == 11)
    reached = np.zeros_like(is_free)
    reached[(start["x"] + half) // step, (start["y"] + half) // step] = True
    before = -1
    while before != (before := int(reached.sum())):
        for _ in range(16):
            grown = reached.copy()
            grown[1:] |= reached[:-1]
            grown[:-1] |= reached[1:]
            grown[:, 1:] |= reached[:, :-1]
            grown[:, :-1] |= reached[:, 1:]
            reached = grown & is_free
    return lambda x, y: reached[(x + half) // step, (y + half) // step]


def test_players_see_the_right_sides_of_lines() -> None:
    parts = blocks(arena())
    half = max(vertex["x"] for vertex in parts["vertex"])
    # Twice the signed area of each closed line, positive counterclockwise.
    areas, first = [], 0
    for number, line in enumerate(parts["linedef"]):
        if line["v2"] == first:
            around = [ends(parts, other) for other in parts["linedef"][first : number + 1]]
            areas.append(sum(a[0] * b[1] - a[1] * b[0] for a, b in around))
            first = number + 1
    assert areas[0] == -2 * (2 * half) ** 2
    assert all(area > 0 for area in areas[1:])
    sides = sum(1 + ("sideback" in line) for line in parts["linedef"])
    assert sides == len(parts["sidedef"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    return tmp_path / "my cache"


def test_the_file_is_written_once_and_again_if_it_is_damaged(cache: Path) -> None:
    path = Path(arena_path())
    assert path == cache / "rollmill/arena.wad"
    assert path.read_bytes() == arena()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    written = path.stat().st_mtime_ns
    assert arena_path() == str(path)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"PWAD")
    arena_path()
    assert path.read_bytes() == arena()
    assert os.listdir(path.parent) == ["arena.wad"]


@pytest.mark.slow
def test_processes_can_write_it_at_once(cache: Path) -> None:
    """Each removes the file again and again, and none ever sees a part of it."""
    program = (
        "import contextlib, os\n"
        "from rollmill.envs.doom_arena import arena, arena_path\n"
        "seen = 0\n"
        "for _ in range(300):\n"
        "    with contextlib.suppress(FileNotFoundError):\n"
        "        with open(arena_path(), 'rb') as file:\n"
        "            assert file.read() == arena()\n"
        "        seen += 1\n"
        "        os.unlink(arena_path())\n"
        "assert seen > 10\n"
    )
    (temporary := cache.parent / "temporary").mkdir()
    variables = {**os.environ, "TMPDIR": str(temporary)}
    started = [subprocess.Popen([sys.executable, "-c", program], env=variables) for _ in range(4)]
    assert [process.wait(timeout=60) for process in started] == [0] * 4
    assert set(os.listdir(cache / "rollmill")) <= {"arena.wad"}
    assert os.listdir(temporary) == []  # A file that has gone meanwhile is no reason to take the other folder.


def test_other_folders_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert arena_path() == str(tmp_path / ".cache/rollmill/arena.wad")
    # A folder that others can write to is not used, nor is one that cannot be made.
    (tmp_path / ".cache/rollmill").chmod(0o777)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert arena_path() == str(temporary / f"rollmill-{os.geteuid()}/arena.wad")
    monkeypatch.setenv("HOME", "")
    assert arena_path() == str(temporary / f"rollmill-{os.geteuid()}/arena.wad")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(UnknownEnvironment, match=r"wad='arena': its file cannot be written .*set XDG_CACHE_HOME"):
        arena_path()


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A match of one player that can be moved about and sees all things."""
    vizdoom = pytest.importorskip("vizdoom")
    from rollmill.envs.doom_ports import Port
    from rollmill.envs.vizdoom_env import with_screen

    monkeypatch.chdir(tmp_path)  # The engine leaves its settings there.
    write_arena("arena.wad")
    game = with_screen(vizdoom.DoomGame(), "160x120")
    game.set_doom_scenario_path("arena.wad")
    game.set_objects_info_enabled(True)
    for button in ("MOVE_FORWARD", "TURN_LEFT_RIGHT_DELTA"):
        game.add_available_button(getattr(vizdoom.Button, button))
    game.set_episode_timeout(0)
    port = Port()
    game.add_game_args(f"-host 1 -port {port.number} -deathmatch +sv_cheats 1")
    game.init()
    yield game
    game.close()
    port.close()


def test_all_things_are_there_and_are_taken_by_walking_over_them(game: Any) -> None:
    import vizdoom

    expected = Counter(CLASSES[t["type"]] for t in blocks(arena())["thing"] if t["type"] in CLASSES)
    found = Counter(item.name for item in game.get_state().objects)
    assert {name: found[name] for name in expected} == expected

    def value(name: str) -> float:
        return float(game.get_game_variable(getattr(vizdoom.GameVariable, name)))

    # Ammunition first: weapons bring some, and nobody takes more than the most that can be carried.
    for kind, variable in [
        *((2049, "AMMO3"), (2048, "AMMO2"), (2046, "AMMO5"), (17, "AMMO6"), (2018, "ARMOR"), (2019, "ARMOR")),
        *((2001, "WEAPON3"), (82, "WEAPON3"), (2002, "WEAPON4"), (2003, "WEAPON5"), (2004, "WEAPON6")),
    ]:
        thing = next(t for t in blocks(arena())["thing"] if t["type"] == kind)
        game.make_action([0, 0], 35)  # It comes to rest.
        game.send_game_command(f"warp {thing['x'] + 45} {thing['y']}")
        game.make_action([0, 0], 20)  # One cannot move at once.
        # Turning is clockwise, angles are counterclockwise.
        game.make_action([0, value("ANGLE") - 180])
        before = value(variable)
        tics = 0
        while value(variable) == before:
            game.make_action([1, 0])
            tics += 1
            assert tics < 40, CLASSES[kind]


def played(name: str, **options: Any) -> Any:
    return make_env(EnvConfig(name=f"vizdoom/{name}", vizdoom=VizdoomOptions(wad="arena", **options)))


def test_bots_fight_in_it(cache: Path) -> None:
    vizdoom = pytest.importorskip("vizdoom")
    env = played("deathmatch_bots", bots=7, measurements=True)
    env.reset(seed=3)
    for _ in range(60 * 35 // 2):
        env.step(np.zeros(6, np.int64))
    variables = [getattr(vizdoom.GameVariable, f"PLAYER{number}_FRAGCOUNT") for number in range(1, 9)]
    frags = [env.unwrapped._game.get_game_variable(variable) for variable in variables]
    env.close()
    # The first player is the agent, who stood still. Killing oneself counts -1.
    assert sum(frag > 0 for frag in frags[1:]) >= 3
    assert sum(frags[1:]) >= 7


@pytest.mark.parametrize(("name", "options", "players"), [("duel", {}, 2), ("deathmatch", {"players": 3}, 3)])
def test_agents_meet_in_it(name: str, options: dict[str, int], players: int, cache: Path) -> None:
    pytest.importorskip("vizdoom")
    assert scenario(name, packaged="nowhere", wad="arena").wad == str(cache / "rollmill/arena.wad")
    maker = resolve_maker(EnvConfig(name=f"vizdoom/{name}", vizdoom=VizdoomOptions(wad="arena", **options)))
    match = maker.env()
    try:
        match.reset(seed=2)
        space = match.action_space("player_0")
        space.seed(1)
        assert len(match.agents) == players
        seen = []
        for _ in range(100):
            observations, _, terminated, _, _ = match.step({agent: space.sample() for agent in match.agents})
            assert not any(terminated.values())
            seen.append([observations[agent] for agent in match.agents])
        assert all(np.std([views[agent] for views in seen], axis=0).max() > 20 for agent in range(players))
    finally:
        match.close()

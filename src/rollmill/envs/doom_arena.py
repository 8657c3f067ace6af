"""A Doom map for matches that Rollmill makes itself: one arena with weapons, ammunition, armour and health.

The arena looks the same from each of its four sides: one quarter is laid out, and turned by 90 degrees three times.
Every quarter has a room in its corner, behind a wall with two openings, and pillars; the middle of the arena is a
platform one step high. Outer walls and rooms differ in colour, so that a player can tell where it is.

The file is a WAD with one map in text (UDMF, https://zdoom.org/wiki/Universal_Doom_Map_Format) and nothing else; the
engine makes the nodes when it loads the map.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rollmill.envs.errors import UnknownEnvironment

Point = tuple[int, int]

_GRID = 32  # units of the layout below along a side
_SMALLEST, _LARGEST, _MULTIPLE_OF = 1024, 4096, 128
_MOST_PILLARS = 3
_CEILING, _STEP = 192, 24
_OUTER_WALLS = ("STARTAN3", "BRICK7", "METAL2", "TEKGREN2")
_ROOM_WALLS = ("GRAY7", "BROWN96", "STONE2", "MARBLE1")
_PILLAR_WALL, _STEP_WALL = "METAL1", "STEP3"

# One quarter in units of the grid, from the middle of the arena to the corner at (16, 16).
_ROOM = ((8.0, 8.0), (13.0, 8.0), (13.0, 8.5), (8.5, 8.5), (8.5, 13.0), (8.0, 13.0))
_PILLARS = ((5.5, 5.5), (11.0, 3.0), (3.0, 11.0))
_PILLAR_HALF = 0.75
_PLATFORM = 2.0
_DEATHMATCH_START = 11
_PLAYER_STARTS = ((1, 2, 3, 4), (4001, 4002, 4003, 4004))
# Where players start: place and angle.
_STARTS = ((14.0, 14.0, 225), (13.0, 1.0, 180), (8.0, 5.5, 180))
# Type of a thing -> its places in a quarter. Names are those of the engine's classes.
_ITEMS: Mapping[int, tuple[tuple[float, float], ...]] = {
    2001: ((9.5, 9.5),),  # Shotgun
    82: ((12.0, 12.0),),  # SuperShotgun
    2002: ((14.5, 0.0),),  # Chaingun
    2003: ((4.0, 0.0),),  # RocketLauncher
    2004: ((7.0, 7.0),),  # PlasmaRifle
    2049: ((9.5, 14.5), (14.5, 9.5)),  # ShellBox
    2048: ((14.5, 4.0), (4.0, 14.5)),  # ClipBox
    2046: ((5.0, 2.0), (2.0, 5.0)),  # RocketBox
    17: ((8.0, 6.5), (6.5, 8.0)),  # CellPack
    2012: ((11.0, 15.0), (15.0, 11.0), (9.0, 0.0)),  # Medikit
    2011: ((12.0, 7.0), (7.0, 12.0)),  # Stimpack
    2018: ((15.0, 15.0),),  # GreenArmor
    2015: ((6.0, 1.0), (7.0, 1.0), (1.0, 6.0), (1.0, 7.0)),  # ArmorBonus
}
_MIDDLE_ITEM = 2019  # BlueArmor


def arena(*, size: int = 2048, pillars: int = 3, rooms: bool = True) -> bytes:
    """Return the WAD; the same bytes for the same arguments.

    Args:
        size: Length of a side in map units (a player is 32 wide): 1024 to 4096, a multiple of 128.
        pillars: Pillars in each quarter, 0 to 3.
        rooms: Whether corners are rooms.

    Raises:
        ValueError: An argument is outside of what is allowed.
    """
    if not _SMALLEST <= size <= _LARGEST or size % _MULTIPLE_OF:
        raise ValueError(f"size={size}: give a multiple of {_MULTIPLE_OF} from {_SMALLEST} to {_LARGEST}")
    if not 0 <= pillars <= _MOST_PILLARS:
        raise ValueError(f"pillars={pillars}: give 0 to {_MOST_PILLARS}")
    text = "\n".join(_blocks(size // _GRID, pillars, rooms)).encode("ascii")
    lumps = ((b"MAP01", b""), (b"TEXTMAP", text), (b"ENDMAP", b""))
    directory, place = b"", 12
    for name, content in lumps:
        directory += struct.pack("<ii8s", place, len(content), name)
        place += len(content)
    return struct.pack("<4sii", b"PWAD", len(lumps), place) + text + directory


def write_arena(path: str | os.PathLike[str], *, size: int = 2048, pillars: int = 3, rooms: bool = True) -> None:
    """Write the WAD of :func:`arena`, whole or not at all, whatever other processes do."""
    content = arena(size=size, pillars=pillars, rooms=rooms)
    target = Path(path)
    descriptor, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise


def arena_path() -> str:
    """Return the path of the arena in the user's cache folder, written if it is not there.

    The folder is ``rollmill`` in ``XDG_CACHE_HOME`` or ``~/.cache``, else ``rollmill-UID`` where temporary files are.

    Raises:
        UnknownEnvironment: Neither folder can be written to.
    """
    content = arena()
    problems = []
    for folder in (cache_folder(), Path(tempfile.gettempdir()) / f"rollmill-{os.geteuid()}"):
        if folder is None:
            continue
        path = folder / "arena.wad"
        try:
            _make_private(folder)
            if not _holds(path, content):
                write_arena(path)
        except OSError as error:
            problems.append(str(error))
        else:
            return str(path)
    raise UnknownEnvironment(
        f"env.vizdoom.wad='arena': its file cannot be written ({'; '.join(problems)}): set XDG_CACHE_HOME to a folder "
        "that this user can write to"
    )


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def cache_folder() -> Path | None:
    """Return the user's cache folder of Rollmill, which may not exist; None if the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # The specification says to ignore relative ones.
        return Path(given) / "rollmill"
    home = "" if os.environ.get("HOME") == "" else os.path.expanduser("~")
    return Path(home) / ".cache" / "rollmill" if os.path.isabs(home) and os.path.isdir(home) else None


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone.

    Raises:
        OSError: It cannot be made, or others can write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")


def _blocks(unit: int, pillars: int, rooms: bool) -> Iterator[str]:
    """Yield the map's text. A player sees the right side of a line from its first to its second vertex."""
    yield 'namespace = "doom";'
    yield _block("sector", heightceiling=_CEILING, texturefloor="FLOOR4_8", textureceiling="CEIL3_5", lightlevel=192)
    yield _block(
        "sector",
        heightfloor=_STEP,
        heightceiling=_CEILING,
        texturefloor="FLOOR0_1",
        textureceiling="TLITE6_1",
        lightlevel=224,
    )
    lines = _Lines()
    half = unit * _GRID // 2
    yield from lines.around(((-half, half), (half, half), (half, -half), (-half, -half)), _OUTER_WALLS)
    for turns in range(4):
        if rooms:
            yield from lines.around(_placed(_ROOM, unit, turns), (_ROOM_WALLS[turns],))
        for x, y in _PILLARS[:pillars]:
            yield from lines.around(_placed(_square(x, y, _PILLAR_HALF), unit, turns), (_PILLAR_WALL,))
    yield from lines.around(_placed(_square(0, 0, _PLATFORM), unit, 0), (_STEP_WALL,), behind=1)
    for turns in range(4):
        for number, (x, y, angle) in enumerate(_STARTS):
            place = _placed(((x, y),), unit, turns)[0]
            direction = (angle + 90 * turns) % 360
            yield _thing(_DEATHMATCH_START, place, direction)
            if number < len(_PLAYER_STARTS):
                yield _thing(_PLAYER_STARTS[number][turns], place, direction)
        for kind, places in _ITEMS.items():
            for place in _placed(places, unit, turns):
                yield _thing(kind, place)
    yield _thing(_MIDDLE_ITEM, (0, 0))


class _Lines:
    """Numbers the vertices and sides of closed lines."""

    def __init__(self) -> None:
        self._vertices = 0
        self._sides = 0

    def around(self, points: Sequence[Point], textures: Sequence[str], behind: int | None = None) -> Iterator[str]:
        """Yield the blocks of lines around an area.

        Args:
            points: Clockwise around what players walk in, counterclockwise around what they cannot.
            textures: Of the lines, in turn.
            behind: Sector behind the lines, a step higher; None is solid.
        """
        for x, y in points:
            yield _block("vertex", x=x, y=y)
        for number in range(len(points)):
            texture = textures[number % len(textures)]
            ends = {"v1": self._vertices + number, "v2": self._vertices + (number + 1) % len(points)}
            if behind is None:
                yield _block("sidedef", sector=0, texturemiddle=texture)
                yield _block("linedef", **ends, sidefront=self._sides, blocking=True)
                self._sides += 1
            else:
                yield _block("sidedef", sector=0, texturebottom=texture)
                yield _block("sidedef", sector=behind)
                yield _block("linedef", **ends, sidefront=self._sides, sideback=self._sides + 1, twosided=True)
                self._sides += 2
        self._vertices += len(points)


def _square(x: float, y: float, half: float) -> tuple[tuple[float, float], ...]:
    return ((x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half))


def _placed(points: Sequence[tuple[float, float]], unit: int, turns: int) -> list[Point]:
    """Turn points by quarters, counterclockwise, and scale them to map units."""
    for _ in range(turns):
        points = [(-y, x) for x, y in points]
    return [(round(x * unit), round(y * unit)) for x, y in points]


def _thing(kind: int, place: Point, angle: int = 0) -> str:
    skills = {f"skill{number}": True for number in range(1, 6)}
    return _block("thing", x=place[0], y=place[1], angle=angle, type=kind, **skills, single=True, coop=True, dm=True)


def _block(kind: str, **fields: int | bool | str) -> str:
    return f"{kind} {{ {' '.join(f'{name} = {_value(value)};' for name, value in fields.items())} }}"


def _value(value: int | bool | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)

"""Checks of the user's WAD files, on which the engine would crash."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from rollmill.envs.errors import UnknownEnvironment

# The start of a WAD: its kind, the number of its lumps, and where their table is; and a row of that table: where a lump
# is, its size, and its name. The lump after a map's name is the first one of the map.
_HEADER, _ROW = struct.Struct("<4sii"), struct.Struct("<ii8s")
_AFTER_A_MAP = ("THINGS", "TEXTMAP")
# Bytes of a record in the lumps that each map has, in Doom's format and in Hexen's.
_RECORDS = {"THINGS": (10, 20), "LINEDEFS": (14, 16), "SIDEDEFS": (30, 30), "VERTEXES": (4, 4), "SECTORS": (26, 26)}
_OF_HEXEN = "BEHAVIOR"


class _Lump(NamedTuple):
    name: str
    size: int


def check_map(given: str, path: str, map_name: str) -> None:
    """Refuse a file that the engine would crash on, and a map in whose place it would play one of another file.

    Raises:
        UnknownEnvironment: It is no WAD, has no such map, or the map is damaged.
    """
    lumps = _lumps_of(given, path)
    if lumps is None:
        return
    following = [*lumps[1:], _Lump("", 0)]
    starts = [index for index, after in enumerate(following[: len(lumps)]) if after.name in _AFTER_A_MAP]
    maps, wanted = [lumps[index].name for index in starts], map_name.upper()
    if wanted not in maps:
        raise UnknownEnvironment(
            f"env.vizdoom.wad={given!r}: {path} has no map {wanted}; it has {', '.join(maps) or 'none'} "
            "(PATH:MAP names another one)"
        )
    # Of maps with the same name, the engine takes the last one.
    start = max(index for index in starts if lumps[index].name == wanted)
    end = min((index for index in starts if index > start), default=len(lumps))
    if damage := _damage(lumps[start + 1 : end]):
        raise UnknownEnvironment(f"env.vizdoom.wad={given!r}: the map {wanted} of {path} is damaged: {damage}")


def _lumps_of(given: str, path: str) -> list[_Lump] | None:
    """Return the lumps of a WAD; None for a ZIP archive (PK3), in which maps are files of their own."""
    with open(path, "rb") as file:
        kind, count, place = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size))
        if kind[:2] == b"PK":
            return None
        nbytes = os.fstat(file.fileno()).st_size
        if kind not in (b"PWAD", b"IWAD") or not (count >= 0 and 0 <= place <= nbytes - count * _ROW.size):
            raise UnknownEnvironment(f"env.vizdoom.wad={given!r}: {path} is no WAD; give a map of Doom's")
        file.seek(place)
        rows = list(_ROW.iter_unpack(file.read(count * _ROW.size)))
    # Old editors leave bytes after the end of a name.
    names = [name.split(b"\0", 1)[0].decode("ascii", "replace").upper() for _, _, name in rows]
    # A lump that is not all in the file counts as empty.
    return [
        _Lump(name, size if 0 <= start <= nbytes - size else 0)
        for name, (start, size, _) in zip(names, rows, strict=True)
    ]


def _damage(lumps: list[_Lump]) -> str:
    """Describe what a map lacks; "" if it has all."""
    if lumps and lumps[0].name == "TEXTMAP":
        return "" if lumps[0].size > 0 else "its text is empty"
    size_of = dict(reversed(lumps))  # The first ones of a name are the map's.
    for name, (doom, hexen) in _RECORDS.items():
        record, size = hexen if _OF_HEXEN in size_of else doom, size_of.get(name, 0)
        if size <= 0 or size % record:
            return f"its lump {name} has {size} bytes, which are no records of {record} bytes"
    return ""

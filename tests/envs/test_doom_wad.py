"""Damaged maps are refused before an engine crashes on them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("vizdoom", reason="pip install vizdoom")

from rollmill.envs.doom_arena import arena_path
from rollmill.envs.doom_wad import check_map
from rollmill.envs.errors import UnknownEnvironment

DOOM = {"THINGS": 20, "LINEDEFS": 28, "SIDEDEFS": 60, "VERTEXES": 8, "SECTORS": 26}


def wad(path: Path, maps: Mapping[str, Mapping[str, int]]) -> str:
    """Write a WAD of maps whose lumps have these sizes."""
    rows, content = [], b""
    for name, lumps in maps.items():
        for lump, size in {name: 0, **lumps}.items():
            rows.append((12 + len(content), size, lump.encode()))
            content += b"\1" * size
    table = b"".join(struct.pack("<ii8s", *row) for row in rows)
    path.write_bytes(struct.pack("<4sii", b"PWAD", len(rows), 12 + len(content)) + content + table)
    return str(path)


def test_what_follows_the_end_of_a_name_is_none_of_it(tmp_path: Path) -> None:
    path = wad(tmp_path / "old.wad", {"MAP01\0XY": DOOM})
    check_map(path, path, "MAP01")


def test_maps_of_both_formats_and_of_text_are_accepted(tmp_path: Path) -> None:
    hexen = {**DOOM, "THINGS": 40, "LINEDEFS": 32, "BEHAVIOR": 7}
    path = wad(tmp_path / "a.wad", {"MAP01": DOOM, "MAP02": hexen, "MAP03": {"TEXTMAP": 5, "ENDMAP": 0}})
    for name in ("map01", "MAP02", "MAP03"):
        check_map(path, path, name)
    check_map("arena", arena_path(), "MAP01")


@pytest.mark.parametrize(
    ("lumps", "message"),
    [
        ({**DOOM, "THINGS": 7}, "the map MAP01 of .* is damaged: its lump THINGS has 7 bytes, .* records of 10 bytes"),
        ({**DOOM, "SECTORS": 0}, "its lump SECTORS has 0 bytes"),
        ({"THINGS": 10}, "its lump LINEDEFS has 0 bytes"),
        ({"TEXTMAP": 0}, "its text is empty"),
        ({}, "has no map MAP01; it has MAP02"),
    ],
)
def test_what_is_damaged_is_named(lumps: Mapping[str, int], message: str, tmp_path: Path) -> None:
    path = wad(tmp_path / "a.wad", {"MAP01": lumps, "MAP02": DOOM})
    with pytest.raises(UnknownEnvironment, match=message):
        check_map(path, path, "MAP01")


def test_a_file_without_lumps_or_with_lumps_beyond_its_end_has_no_map(tmp_path: Path) -> None:
    path = wad(tmp_path / "empty.wad", {})
    with pytest.raises(UnknownEnvironment, match="has no map MAP01; it has none"):
        check_map(path, path, "MAP01")
    whole = Path(wad(tmp_path / "a.wad", {"MAP01": DOOM})).read_bytes()
    start = len(whole) - 16 * (len(DOOM) + 1)
    beyond = whole[: start + 16] + struct.pack("<ii", 10_000, 20) + whole[start + 24 :]
    (tmp_path / "a.wad").write_bytes(beyond)
    with pytest.raises(UnknownEnvironment, match="its lump THINGS has 0 bytes"):
        check_map("a.wad", str(tmp_path / "a.wad"), "MAP01")

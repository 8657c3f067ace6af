"""Draw the arena of ``env.vizdoom.wad="arena"`` from above.

python docs/pictures/doom_arena.py
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import cv2
import numpy as np

from rollmill.envs.doom_arena import arena

SIZE, MARGIN, HALF = 520, 14, 1024
NAMES = {2001: "shotgun", 82: "super shotgun", 2002: "chaingun", 2003: "rockets", 2004: "plasma"}
# Blue, green, red.
START, WEAPON, ARMOUR, HEALTH, AMMUNITION = (0, 160, 0), (0, 0, 220), (200, 120, 0), (200, 0, 200), (0, 140, 255)
COLOURS = {11: START, **dict.fromkeys(NAMES, WEAPON), **dict.fromkeys((2018, 2015, 2019), ARMOUR)}
COLOURS |= {**dict.fromkeys((2011, 2012), HEALTH), **dict.fromkeys((2049, 2048, 2046, 17), AMMUNITION)}


def blocks(kind: str) -> list[dict[str, str]]:
    wad = arena()
    place, size = struct.unpack_from("<ii", wad, struct.unpack_from("<i", wad, 8)[0] + 16)
    text = wad[place : place + size].decode()
    return [dict(re.findall(r"(\w+) = (.*?);", block)) for block in re.findall(rf"{kind} \{{ (.*?) \}}", text)]


def main() -> None:
    scale = (SIZE - 2 * MARGIN) / (2 * HALF)

    def pixel(block: dict[str, str]) -> tuple[int, int]:
        return MARGIN + round((int(block["x"]) + HALF) * scale), MARGIN + round((HALF - int(block["y"])) * scale)

    picture = np.full((SIZE, SIZE, 3), 255, np.uint8)
    vertices = blocks("vertex")
    for line in blocks("linedef"):
        first, second = (pixel(vertices[int(line[name])]) for name in ("v1", "v2"))
        is_step = "twosided" in line
        cv2.line(picture, first, second, (150,) * 3 if is_step else (0,) * 3, 1 if is_step else 3, cv2.LINE_AA)
    for thing in blocks("thing"):
        kind, at = int(thing["type"]), pixel(thing)
        if kind in COLOURS:
            cv2.circle(picture, at, 6 if kind in NAMES or kind == 11 else 3, COLOURS[kind], -1, cv2.LINE_AA)
        if kind in NAMES:
            (width, _), _ = cv2.getTextSize(NAMES[kind], cv2.FONT_HERSHEY_SIMPLEX, 0.32, 1)
            left = min(max(at[0] - width // 2, MARGIN + 4), SIZE - MARGIN - 4 - width)
            where = (left, at[1] - 9)
            cv2.putText(picture, NAMES[kind], where, cv2.FONT_HERSHEY_SIMPLEX, 0.32, (0, 0, 160), 1, cv2.LINE_AA)
    cv2.imwrite(str(Path(__file__).with_name("doom_arena.png")), picture, (cv2.IMWRITE_PNG_COMPRESSION, 9))


if __name__ == "__main__":
    main()

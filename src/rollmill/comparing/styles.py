"""Colours and line styles that distinguish any number of methods."""

from __future__ import annotations

import colorsys
from typing import Any, NamedTuple

__all__ = ["Style", "styles"]

# Okabe and Ito's colours, which colour-blind people can tell apart; without yellow, which is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
# As matplotlib takes them: solid, dashed, dash-dotted, dotted, long-dashed.
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (6, 2, 1, 2)), (0, (1.2, 1.2)), (0, (10, 3)))
_MARKERS = "osD^vPX"
# Lightness and saturation of neighbouring hues, so that they differ in more than the hue.
_TONES = ((0.38, 0.85), (0.58, 0.70), (0.30, 0.45))


class Style(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Hexadecimal, ``"#rrggbb"``.
        line: A line style of matplotlib.
        marker: A marker of matplotlib.
    """

    colour: str
    line: Any
    marker: str


def styles(count: int) -> list[Style]:
    """``count`` styles with distinct colours; neighbours also differ in line style and marker.

    Up to eight have Okabe and Ito's colours. More have hues at equal distances, in three tones.
    """
    colours = _COLOURS[:count] if count <= len(_COLOURS) else tuple(_hue(i, count) for i in range(count))
    return [Style(colour, _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)]) for i, colour in enumerate(colours)]


def _hue(place: int, count: int) -> str:
    lightness, saturation = _TONES[place % len(_TONES)]
    red, green, blue = (int(255.999 * part) for part in colorsys.hls_to_rgb(place / count, lightness, saturation))
    return f"#{red:02x}{green:02x}{blue:02x}"

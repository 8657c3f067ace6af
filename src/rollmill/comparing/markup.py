"""The frame of a page, and what stands on it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .5rem; text-align: right; vertical-align: top; white-space: nowrap; }
th { border-bottom: 1px solid #888; }
td:first-child, th:first-child { text-align: left; white-space: normal; min-width: 10rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
tr:nth-child(even) td { background: #f5f5f5; } img, video { max-width: 100%; } figure { margin: 1rem 0; }
dl.log { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem .8rem; overflow-wrap: anywhere; }
dl.log dt { font-weight: 600; } dl.log dd { margin: 0; } @media (max-width: 40rem) { dl.log { display: block; } }
.note { color: #666; font-size: .9em; }
"""


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page with a title and these parts of its body.

    Args:
        path: The file.
        title: Text.
        parts: HTML. Characters that no file can have, as in a folder's name that is not UTF-8, are escaped.
    """
    body = "\n".join(parts)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def picture(path: Path) -> str:
    """Return a PNG file as a part of a page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}"></p>'

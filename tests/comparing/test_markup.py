"""The frame of a page."""

from __future__ import annotations

import base64
from pathlib import Path

from rollmill.comparing.markup import picture, write_page


def test_a_page_has_its_title_escaped_and_its_parts_as_they_are(tmp_path: Path) -> None:
    # The last character is how Python shows a byte of a folder's name that is not UTF-8.
    write_page(tmp_path / "page.html", "a < b", ["<p>one</p>", "<p>two</p>", "\u00e4 \udcff"])
    page = (tmp_path / "page.html").read_bytes().decode("utf-8")
    assert "\u00e4 \\udcff" in page
    assert "<title>a &lt; b</title>" in page
    assert "<p>one</p>\n<p>two</p>" in page
    assert "pre { white-space: pre-wrap;" in page  # a long command must not widen the page


def test_a_picture_is_part_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "a&b.png"
    path.write_bytes(b"\x89PNG")
    part = picture(path)
    assert base64.b64encode(b"\x89PNG").decode() in part
    assert 'alt="a&amp;b"' in part

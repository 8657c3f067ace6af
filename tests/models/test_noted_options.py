"""Options that note which of them are read."""

from __future__ import annotations

import pytest

from rollmill.models.noted_options import NotedOptions


def test_what_nothing_asks_for_is_unread() -> None:
    options = NotedOptions({"width": 3, "depth": 2, "widht": 4})
    assert options["width"] == 3
    assert options.get("height", 7) == 7
    assert "depth" in options
    assert options.unread == ("widht",)
    assert options.read == {"width", "height", "depth"}
    with pytest.raises(KeyError):
        options["bias"]


def test_going_through_all_reads_all() -> None:
    options = NotedOptions({"width": 3, "depth": 2})
    assert options == {"width": 3, "depth": 2}
    assert dict(**options) == {"width": 3, "depth": 2}
    assert options.unread == ()

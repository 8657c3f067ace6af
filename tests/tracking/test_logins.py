"""Tests of :mod:`rollmill.tracking.logins`."""

from __future__ import annotations

import pytest

from rollmill.tracking.logins import without_logins


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://user:secret@host:5000/path", "http://host:5000/path"),
        ("run 1 in http://user:se@cret@host", "run 1 in http://host"),
        ("rollmill train a --init-from 'hf://a/b@c'", "rollmill train a --init-from 'hf://a/b@c'"),
        ("me@host", "me@host"),
        ({"uri": "https://token@host", "n": 3}, {"uri": "https://host", "n": 3}),
        (("https://token@host", 1.5, None), ("https://host", 1.5, None)),
    ],
)
def test_addresses_lose_their_logins(given: object, kept: object) -> None:
    assert without_logins(given) == kept

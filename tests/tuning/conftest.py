"""A machine of sixteen cores for configurations, whatever this one has."""

from __future__ import annotations

import pytest


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.settings.config.usable_cores", lambda: 16)

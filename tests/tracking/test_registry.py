"""The names of trackers, and what is missing for them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import rollmill
from rollmill.tracking.config import TrackingConfig
from rollmill.tracking.registry import (
    TRACKERS,
    TrackerNotInstalledError,
    UnknownTrackerError,
    check_trackers,
    is_installed,
)


def test_an_unknown_tracker_is_refused_before_the_run() -> None:
    with pytest.raises(UnknownTrackerError, match=r"tracker='wandbb'.*did you mean 'wandb'\?.*register_tracker"):
        rollmill.train("gym/CartPole-v1", tracker="wandbb", quiet=True)


@pytest.mark.parametrize(("name", "command"), [("wandb", "wandb"), ("mlflow", "mlflow-skinny"), ("trackio", "trackio")])
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str, command: str) -> None:
    monkeypatch.setattr("rollmill.tracking.registry.can_import", lambda given: given != name)
    with pytest.raises(TrackerNotInstalledError, match=f"tracker='{name}' needs .*: pip install {command}, or omit"):
        check_trackers(TrackingConfig(trackers=(name,)))
    assert not is_installed(name)


def test_the_default_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.tracking.registry.can_import", lambda given: False)
    check_trackers(TrackingConfig())
    check_trackers(TrackingConfig(trackers=None))


def test_a_mere_folder_of_its_name_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some_service" / "logs").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("some_service")
    (tmp_path / "some_service" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert is_installed("some_service")


def test_a_registered_tracker_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS, "factories", dict(TRACKERS.factories))
    rollmill.register_tracker("mine", lambda run: pytest.fail("it is not started"))
    check_trackers(TrackingConfig(trackers=("mine",)))
    with pytest.raises(ValueError, match="tracker 'wandb' exists already"):
        rollmill.register_tracker("wandb", lambda run: pytest.fail("it is not started"))

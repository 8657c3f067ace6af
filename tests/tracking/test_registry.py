"""The names of trackers, and what is missing for them."""

from __future__ import annotations

import importlib.util

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
    found = importlib.util.find_spec
    monkeypatch.setattr("rollmill.tracking.registry.find_spec", lambda given: None if given == name else found(given))
    with pytest.raises(TrackerNotInstalledError, match=f"tracker='{name}' needs .*: pip install {command}, or omit"):
        check_trackers(TrackingConfig(trackers=(name,)))
    assert not is_installed(name)


def test_the_default_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.tracking.registry.find_spec", lambda given: None)
    check_trackers(TrackingConfig())
    check_trackers(TrackingConfig(trackers=None))


def test_a_registered_tracker_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS, "factories", dict(TRACKERS.factories))
    rollmill.register_tracker("mine", lambda run: pytest.fail("it is not started"))
    check_trackers(TrackingConfig(trackers=("mine",)))
    with pytest.raises(ValueError, match="tracker 'wandb' exists already"):
        rollmill.register_tracker("wandb", lambda run: pytest.fail("it is not started"))

"""The settings of rollout workers: their defaults, and which values they take."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rollmill.rollout.config import RolloutConfig


def test_defaults_are_double_buffered_and_leave_numbers_to_the_machine() -> None:
    assert dataclasses.asdict(RolloutConfig()) == {
        "num_workers": "auto",
        "groups_per_worker": 2,
        "env_threads": "auto",
        "decorrelate_steps": "auto",
        "step_timeout_s": 300.0,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", 1),
        ("num_workers", "auto"),
        ("groups_per_worker", 1),
        ("env_threads", 8),
        ("decorrelate_steps", 0),
        ("decorrelate_steps", "auto"),
        ("step_timeout_s", 1),
    ],
)
def test_valid_values_are_kept_as_they_are(name: str, value: Any) -> None:
    assert getattr(RolloutConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("num_workers", 0, "integer of at least 1, or 'auto'"),
        ("num_workers", 2.0, "integer of at least 1, or 'auto'"),
        ("num_workers", "many", "integer of at least 1, or 'auto'"),
        ("groups_per_worker", 0, "integer of at least 1"),
        ("groups_per_worker", "auto", "integer of at least 1"),
        ("groups_per_worker", True, "integer of at least 1"),
        ("env_threads", -1, "integer of at least 1, or 'auto'"),
        ("decorrelate_steps", -1, "integer of at least 0, or 'auto'"),
        ("step_timeout_s", 0.0, r"above 0 \(seconds\)"),
        ("step_timeout_s", float("inf"), r"above 0 \(seconds\)"),
        ("step_timeout_s", None, r"above 0 \(seconds\)"),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^rollout\.{name}=.*{allowed}"):
        RolloutConfig(**{name: value})

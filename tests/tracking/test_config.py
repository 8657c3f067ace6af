"""Settings of trackers."""

from __future__ import annotations

import pytest

import rollmill
from rollmill.settings.option_values import OptionError
from rollmill.tracking.config import TrackingConfig


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("tensorboard,wandb", ("tensorboard", "wandb")),
        ("none", ()),
        (None, ()),
        ((), ()),
        (("mlflow",), ("mlflow",)),
    ],
)
def test_trackers_are_named_by_one_setting(given: object, names: tuple[str, ...]) -> None:
    assert rollmill.make_config("gym/CartPole-v1", {"tracker": given}).tracking.names == names


def test_tensorboard_is_the_default_and_reports_to_nobody() -> None:
    assert TrackingConfig().names == ("tensorboard",)
    assert TrackingConfig().reports_to == ""
    assert TrackingConfig(trackers=("tensorboard", "mine"), mlflow_uri="x").reports_to == (
        "tracker=mine, tracking.mlflow_uri=x"
    )


@pytest.mark.parametrize("given", ["wandb,wandb", ("",)])
def test_a_tracker_is_named_once(given: object) -> None:
    with pytest.raises(OptionError, match="name each tracker once, as in tensorboard,wandb, or none"):
        rollmill.make_config("gym/CartPole-v1", {"tracker": given})


def test_the_setting_of_earlier_versions_says_what_to_give() -> None:
    with pytest.raises(OptionError, match=r"here it is tracking.project \(with tracker tensorboard,wandb\)"):
        rollmill.make_config("gym/CartPole-v1", {"wandb_project": "mine"})

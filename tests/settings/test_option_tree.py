"""The tree of a configuration."""

from __future__ import annotations

from rollmill.api import make_config
from rollmill.settings.config import Config
from rollmill.settings.option_tree import annotations_of, flat_items, keys_of, make, tag_keys


def test_the_keys_of_a_configuration_are_those_of_its_members() -> None:
    config = make_config("gym/CartPole-v1")
    flat = dict(flat_items(config, ""))
    assert flat.keys() == annotations_of(Config, flat, "").keys()
    assert flat.keys() < keys_of(Config).keys(), "those of other regimes and algorithms are known, too"
    assert tag_keys(Config) & flat.keys() == {"regime", "learner.schedule", "learner.optimiser"}
    assert make(Config, flat, "") == config

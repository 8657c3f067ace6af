"""What the public functions check before they start a process."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollmill
from rollmill.settings.config import ConfigError
from rollmill.settings.option_values import OptionError
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError

CARTPOLE = "gym/CartPole-v1"


def test_what_cannot_be_saved_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"env\.kwargs"):
        rollmill.train(CARTPOLE, run_dir=tmp_path / "run", quiet=True, **{"env.kwargs": {"callback": print}})
    assert not (tmp_path / "run").exists()


def test_a_resume_of_another_preset_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE))
    with pytest.raises(RunDirectoryError, match=r"is a run of 'gym/CartPole-v1', not of 'gym/Acrobot-v1'"):
        rollmill.train("gym/Acrobot-v1", run_dir=tmp_path, resume=True, quiet=True)


def test_points_of_the_learning_rate_are_the_rate_itself() -> None:
    points = {"learner.schedule": "0:3e-4,1e6:1e-4"}
    assert rollmill.make_config("gym/CartPole-v1", points).optimiser.schedule.name == points["learner.schedule"]
    assert rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": "3e-4"}).optimiser.learning_rate == 3e-4
    with pytest.raises(ConfigError, match="omit learning_rate, or give that of the first point"):
        rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": 1e-3})
    with pytest.raises(OptionError, match="choose 'constant', 'linear', 'kl', or points as AGENT_STEPS:LEARNING_RATE"):
        rollmill.make_config("gym/CartPole-v1", {"learner.schedule": "linaer"})

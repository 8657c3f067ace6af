"""What the public functions check before they start a process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import rollmill
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import flatten
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.settings.value_checks import ConfigError

CARTPOLE = "gym/CartPole-v1"


def test_what_cannot_be_saved_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"env\.kwargs"):
        rollmill.train(CARTPOLE, run_dir=tmp_path / "run", quiet=True, **{"env.kwargs": {"callback": print}})
    assert not (tmp_path / "run").exists()


def test_a_resume_of_another_preset_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE))
    with pytest.raises(RunDirectoryError, match=r"is a run of 'gym/CartPole-v1', not of 'gym/Acrobot-v1'"):
        rollmill.train("gym/Acrobot-v1", run_dir=tmp_path, resume=True, quiet=True)


def test_a_resume_with_an_algorithm_names_what_was_given(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE))
    with pytest.raises(RunDirectoryError, match=r"^algo='dqn' with resume: a resumed run keeps its algorithm"):
        rollmill.train(run_dir=tmp_path, resume=True, algo="dqn", quiet=True)


def test_a_resume_without_a_directory_is_refused() -> None:
    with pytest.raises(RunDirectoryError, match=r"resume without run_dir: .* \(--run-dir DIR, run_dir=DIR\)"):
        rollmill.train(resume=True, quiet=True)


def test_points_of_the_learning_rate_are_the_rate_itself() -> None:
    points = {"learner.schedule": "0:3e-4,1e6:1e-4"}
    assert rollmill.make_config("gym/CartPole-v1", points).optimiser.schedule.name == points["learner.schedule"]
    assert rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": "3e-4"}).optimiser.learning_rate == 3e-4
    with pytest.raises(ConfigError, match="omit learning_rate, or give that of the first point"):
        rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": 1e-3})
    with pytest.raises(OptionError, match="choose 'constant', 'linear', 'kl', or points as AGENT_STEPS:LEARNING_RATE"):
        rollmill.make_config("gym/CartPole-v1", {"learner.schedule": "linaer"})


@pytest.mark.parametrize(
    ("preset", "algo", "settings", "chosen"),
    [
        ("gym/CartPole-v1", "dqn", {"regime": "REPLAY"}, {"regime": "replay"}),
        ("gym/CartPole-v1", "dqn", {"off_policy.algorithm": "DQN"}, {"off_policy.algorithm": "dqn"}),
        ("gym/Pendulum-v1", None, {"regime": "replay", "off_policy.algorithm": "SAC"}, {"off_policy.algorithm": "sac"}),
        ("gym/Pendulum-v1", "sac", {"off_policy": {"tau": 1}}, {"off_policy.algorithm": "sac", "off_policy.tau": 1.0}),
        ("gym/CartPole-v1", None, {"learner.schedule": "Linear"}, {"learner.schedule": "linear"}),
        ("gym/CartPole-v1", None, {"model.log_std_bounds": "-inf,2"}, {"model.log_std_bounds": (-math.inf, 2.0)}),
    ],
)
def test_choices_are_found_as_they_are_given(
    preset: str, algo: str | None, settings: dict[str, object], chosen: dict[str, object]
) -> None:
    assert chosen.items() <= flatten(rollmill.make_config(preset, settings, algo=algo)).items()


@pytest.mark.parametrize(("given", "num_envs"), [({}, 3), ({"num_envs": 1}, 1), ({"num_envs": 6}, 6)])
def test_each_policy_of_a_replay_has_an_environment_by_default(given: dict[str, object], num_envs: int) -> None:
    config = rollmill.make_config("gym/Pendulum-v1", {"policies": 3, **given}, algo="sac")
    assert config.num_envs == num_envs


@pytest.mark.parametrize("missing", ["imageio_ffmpeg", "PIL"])
def test_videos_of_evaluations_need_ffmpeg_and_pillow(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmill.extras.can_import", lambda name: name != missing)
    said = f"eval_video=2 needs {missing}, not installed here: pip install imageio-ffmpeg pillow"
    with pytest.raises(ValueError, match=said):
        rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", eval_video=2, eval_every=9, quiet=True)

"""What the public functions settle before a process is started: directories, settings, what may go on."""

from __future__ import annotations

import fcntl
import subprocess
import threading
from pathlib import Path

import pytest

import rollmill
from rollmill.settings.config import ConfigError
from rollmill.settings.options import OptionError
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError, for_this_run_alone, new_directory

CARTPOLE = "gym/CartPole-v1"


def test_a_directory_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    with for_this_run_alone(tmp_path):
        with pytest.raises(RunDirectoryError, match=f"another process is training in {tmp_path}: wait for it"):
            rollmill.train(CARTPOLE, run_dir=tmp_path, quiet=True)
        # A process that outlives the run must not keep its directory from the next one.
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with open(tmp_path / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.wait()


def test_a_run_that_is_going_on_cannot_be_resumed(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE))
    with (
        for_this_run_alone(tmp_path),
        pytest.raises(RunDirectoryError, match="another process is training"),
    ):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True)


def test_runs_that_start_at_once_get_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    barrier, made = threading.Barrier(16), list[Path]()

    def start() -> None:
        barrier.wait()
        made.append(new_directory(CARTPOLE))

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16
    assert all(path.is_dir() for path in made)


def test_what_cannot_be_saved_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"env\.kwargs"):
        rollmill.train(CARTPOLE, run_dir=tmp_path / "run", quiet=True, **{"env.kwargs": {"callback": print}})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env.name", "gym/Acrobot-v1"),
        ("env.atari.frame_stack", 1),
        ("env.vizdoom.measurements", True),
    ],
)
def test_a_resume_in_another_environment_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE, {"env.kwargs": {"size": 3}}))
    with pytest.raises(RunDirectoryError, match=rf"cannot be resumed with another {name}: .*start a new run"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("off_policy.algorithm", "ddpg"),
        ("off_policy.num_critics", 3),
        ("off_policy.dueling", True),
        ("off_policy.temperature", 0.2),
    ],
)
def test_a_resume_with_another_off_policy_network_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_config(tmp_path, rollmill.make_config("gym/Pendulum-v1", algo="sac"))
    with pytest.raises(RunDirectoryError, match=rf"cannot be resumed with another {name}: .*start a new run"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **{name: value})


@pytest.mark.parametrize("num_envs", range(1, 14))
def test_any_number_of_environments_is_divided_where_nothing_else_is_asked_for(num_envs: int) -> None:
    for algo in (None, "dqn"):
        config = rollmill.make_config(CARTPOLE, {"num_envs": num_envs}, algo=algo).resolved()
        assert num_envs % config.envs_per_group == 0
        assert config.rollout.num_workers <= num_envs // config.envs_per_group


def test_a_resume_of_another_preset_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config(CARTPOLE))
    with pytest.raises(RunDirectoryError, match=r"is a run of 'gym/CartPole-v1', not of 'gym/Acrobot-v1'"):
        rollmill.train("gym/Acrobot-v1", run_dir=tmp_path, resume=True, quiet=True)


def test_points_of_the_learning_rate_are_the_rate_itself() -> None:
    points = {"learner.schedule": "0:3e-4,1e6:1e-4"}
    assert rollmill.make_config("gym/CartPole-v1", points).learner.schedule == points["learner.schedule"]
    assert rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": "3e-4"}).learner.learning_rate == 3e-4
    with pytest.raises(ConfigError, match="omit learning_rate, or give that of the first point"):
        rollmill.make_config("gym/CartPole-v1", {**points, "learning_rate": 1e-3})
    with pytest.raises(OptionError, match="choose 'constant', 'linear', 'kl', or points as AGENT_STEPS:LEARNING_RATE"):
        rollmill.make_config("gym/CartPole-v1", {"learner.schedule": "linaer"})

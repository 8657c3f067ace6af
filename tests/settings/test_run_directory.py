"""Run directories: one run at a time, and distinct names."""

from __future__ import annotations

import fcntl
import subprocess
import threading
from pathlib import Path

import pytest

import rollmill
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


def test_a_run_in_progress_cannot_be_resumed(tmp_path: Path) -> None:
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

"""Runs of CartPole that take a few seconds, and campaigns of them as programs of their own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rollmill.regimes.steps_done import saved_steps
from rollmill.runtime import sweep

SMALL = {
    "num_envs": 8,
    "rollout_length": 16,
    "learner.batch_size": 128,
    "learner.minibatches": 2,
    "learner.micro_batch": 64,
    "learner.precision": "fp32",
    "learner.channels_last": False,
    "inference.precision": "fp32",
    "checkpoint.every_s": 0.5,
    "report_every_s": 0.2,
}
WORDS = [word for key, value in SMALL.items() for word in (f"--{key}", str(value).lower())]


@contextlib.contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command ``rollmill``; what is left of it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "rollmill", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*words: str) -> tuple[int, str, str]:
    """Run the command to its end, and return exit code, output and errors."""
    with program(*words) as process:
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err


def wait_for(what: Callable[[], object], timeout_s: float = 400.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def assert_nothing_is_left(token: str) -> None:
    """No process of the campaign lives on."""
    wait_for(lambda: not sweep.members(token), 60.0)


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run has saved what it has learned."""
    return (saved_steps([run_dir]) or 0) > 0 and (run_dir / "config.json").exists()


def was_resumed(run_dir: Path) -> bool:
    """Whether a run has continued from a checkpoint after its start."""
    return re.search(r"resumed at step [1-9]", (run_dir / "run.log").read_text()) is not None

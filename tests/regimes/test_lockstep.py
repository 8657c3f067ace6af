"""Lockstep: what is learned does not depend on who computes it, how many they are, or how fast."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rollmill
from rollmill.envs.factory import probe
from rollmill.learning.fingerprints import first_difference, read_fingerprints
from rollmill.models.registry import make_model
from rollmill.regimes.setup import Probed
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

slow = pytest.mark.slow

CARTPOLE = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout_length": 16,
    "learner.minibatches": 2,
    "learner.epochs": 2,
    "model.normalise_observations": True,
    "model.normalise_returns": True,
}
RECURRENT = {"model.core": "gru", "model.core_size": 16, "learner.advantage": "vtrace", "learner.epochs": 1}
PONG = {
    "num_envs": 4,
    "envs_per_group": 1,
    "rollout_length": 8,
    "learner.minibatches": 2,
    # Several episodes end within so few steps.
    "env.max_episode_steps": 20,
}
UPDATES = 5


def settings_of(preset: str, updates: int = UPDATES, **changes: Any) -> dict[str, Any]:
    base = CARTPOLE if preset == "gym/CartPole-v1" else PONG
    settings = {"regime": "lockstep", "debug_fingerprints": True, "debug_poison": True, **base, **changes}
    samples = settings["num_envs"] * settings["rollout_length"]
    return {**settings, "total_steps": updates * samples}


def train(
    run_dir: Path, preset: str, *, workers: tuple[int, int] = (1, 1), delay_s: float = 0.0, **changes: Any
) -> Path:
    spread = {"rollout.num_workers": workers[0], "inference.num_workers": workers[1], "debug_delay_s": delay_s}
    run = rollmill.train(preset, run_dir=run_dir, quiet=True, **settings_of(preset, **changes), **spread)
    return run.dir


def assert_same(one: Path, other: Path) -> None:
    a, b = read_fingerprints(one), read_fingerprints(other)
    assert min(len(a), len(b)) >= UPDATES
    assert first_difference(a, b) is None


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gym/CartPole-v1", {"lag": 1}),
        ("atari/pong", {"lag": 1}),
        pytest.param("gym/CartPole-v1", {"lag": 0}, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 3, **RECURRENT}, marks=slow),
        pytest.param("atari/pong", {"lag": 0, **RECURRENT}, marks=slow),
    ],
)
def test_neither_workers_nor_delays_change_a_bit(tmp_path: Path, preset: str, changes: dict[str, Any]) -> None:
    alone = train(tmp_path / "alone", preset, **changes)
    assert_same(alone, train(tmp_path / "two", preset, workers=(2, 2), delay_s=0.2, **changes))
    assert_same(alone, train(tmp_path / "four", preset, workers=(4, 1), delay_s=0.02, **changes))


@pytest.mark.usefixtures("leaves_nothing")
def test_async_with_the_same_delays_differs(tmp_path: Path) -> None:
    changes = {"regime": "async", "learner.batch_size": 128, "lag": 1}
    one = train(tmp_path / "one", "gym/CartPole-v1", **changes)
    other = train(tmp_path / "other", "gym/CartPole-v1", delay_s=0.2, **changes)
    assert first_difference(read_fingerprints(one), read_fingerprints(other)) is not None


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As every process of a run computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("leaves_nothing", "one_thread")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gym/CartPole-v1", {"lag": 3, **RECURRENT}),
        ("atari/pong", {"lag": 1}),
        pytest.param("gym/CartPole-v1", {"lag": 0}, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 1}, marks=slow),
        pytest.param("atari/pong", {"lag": 3, **RECURRENT}, marks=slow),
    ],
)
def test_the_run_is_the_serial_loop(tmp_path: Path, preset: str, changes: dict[str, Any]) -> None:
    run_dir = train(tmp_path / "run", preset, workers=(2, 2), **changes)
    spread = {"rollout.num_workers": 1, "inference.num_workers": 1}
    config = rollmill.make_config(preset, {**settings_of(preset, **changes), **spread}).resolved()
    from serial_loop import serial

    spec = probe(config.env)
    size = make_model(spec.observation, spec.action, config.model).state_size
    weights = serial(config, Probed(spec, size, 0, 0), len(read_fingerprints(run_dir)), tmp_path)
    assert_same(run_dir, tmp_path)
    trained = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state["model"]
    for name, value in weights.items():
        assert torch.equal(trained[name].contiguous(), value.contiguous()), name


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gym/CartPole-v1", {"lag": 1, **RECURRENT}),
        pytest.param("atari/pong", {"lag": 1}, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 0}, marks=slow),
    ],
)
def test_killed_and_resumed_is_as_if_never_interrupted(tmp_path: Path, preset: str, changes: dict[str, Any]) -> None:
    samples = settings_of(preset)["num_envs"] * settings_of(preset)["rollout_length"]
    changes = {**changes, "updates": 12, "checkpoint.every_steps": 4 * samples}
    whole = read_fingerprints(train(tmp_path / "whole", preset, **changes))

    killed = tmp_path / "killed"
    pid = os.fork()
    if pid == 0:
        try:
            train(killed, preset, workers=(2, 1), delay_s=0.5, **changes)
        finally:
            os._exit(0)
    checkpoints = killed / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("checkpoint_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    rollmill.train(run_dir=killed, resume=True, quiet=True, **{"rollout.num_workers": 4, "debug_delay_s": 0.0})
    resumed = read_fingerprints(killed)
    assert resumed[0]["update"] >= 4
    by_update = {line["update"]: line for line in whole}
    for line in resumed:
        other = by_update[line["update"]]
        for part in ("environment", "inference", "learner"):
            assert line[part] == other[part], (line["update"], part)

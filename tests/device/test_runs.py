"""Whole runs of the three regimes on a fake GPU, where no learner may wait for its batch, and on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.device.conftest import NEEDS_GPU, NEEDS_NO_GPU
from tests.regimes.leftovers import nothing_is_left

import rollmill
from rollmill.runtime.events import ProcessFailed
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

ON_REAL_GPU = {"learner.device": "cuda", "inference.device": "cuda"}
ON_GPU = {"env.imports": ("tests.device.gpu_in_runs",), **ON_REAL_GPU}
GPUS = [
    pytest.param(ON_GPU, id="fake", marks=NEEDS_NO_GPU),
    pytest.param(ON_REAL_GPU, id="real", marks=NEEDS_GPU),
]
ON_CPU = {"learner.device": "cpu", "inference.device": "cpu"}
SMALL = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "rollout.num_workers": 1,
    "inference.num_workers": 1,
}
LOCKSTEP = {
    "regime": "lockstep",
    "lag": 1,
    "model.core": "gru",
    "model.core_size": 8,
    "model.normalise_observations": True,
    "learner.epochs": 2,
    "learner.minibatches": 2,
}
REPLAY = {"replay.min_size": 100, "learner.batch_size": 16}
RUNS: dict[str, dict[str, Any]] = {
    "async": {"learner.batch_size": 64, "total_steps": 256},
    "lockstep": {**LOCKSTEP, "total_steps": 160},
    "replay": {**REPLAY, "algo": "dqn", "total_steps": 300},
    "several learners": {**REPLAY, "algo": "sac", "learner.num_learners": 2, "total_steps": 300},
}


def train(run_dir: Path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Train, and return the last checkpoint."""
    with nothing_is_left():
        run = rollmill.train("gym/CartPole-v1", run_dir=run_dir, quiet=True, **{**SMALL, **settings}, **more)
    assert run.ended_by == "total_steps"
    state: dict[str, Any] = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state
    return state


@pytest.mark.parametrize("gpu", GPUS)
# Steps of the others are taken on a GPU by the modules beside this one.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "async" else pytest.mark.slow) for name in RUNS]
)
def test_runs_on_a_gpu(tmp_path: Path, name: str, gpu: dict[str, Any]) -> None:
    state = train(tmp_path / "run", {**RUNS[name], **gpu})
    assert state["counters"]["sgd_steps"] >= 2
    assert all(value.isfinite().all() for value in state["model"].values() if value.is_floating_point())


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["lockstep", "replay"])
def test_resumes_on_another_device(tmp_path: Path, name: str, gpu: dict[str, Any]) -> None:
    settings, steps = RUNS[name], RUNS[name]["total_steps"]
    before = train(tmp_path / "run", {**settings, **ON_CPU})
    for times, device in ((2, gpu), (3, ON_CPU)):
        state = train(tmp_path / "run", {"total_steps": times * steps, **device}, resume=True)
        assert state["counters"]["agent_steps"] >= times * steps
        assert state["counters"]["sgd_steps"] > before["counters"]["sgd_steps"]
        before = state


@pytest.mark.slow
@NEEDS_NO_GPU
def test_tensor_left_on_the_cpu_ends_a_run(tmp_path: Path) -> None:
    settings = {**RUNS["lockstep"], **ON_GPU, "env.imports": ("tests.device.mix_in_runs",)}
    with pytest.raises(ProcessFailed, match=r"MixedDevicesError: aten::\S+ of tensors on both devices"):
        train(tmp_path / "run", settings)

"""The imports of the fork server: complete, and nothing that a fork does not survive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import gc, json, os, sys

from rollmill import preloaded

loaded = set(sys.modules)
torch = sys.modules["torch"]

import rollmill
from rollmill.learning.config import Adam, OptimiserConfig, RMSprop
from rollmill.learning.optimisers import load_optimiser_state, make_optimiser, optimiser_state
from rollmill.models.sizing import without_memory
from rollmill.regimes.torch_side import make_off_policy, make_on_policy
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

# What the first process of a run does, and what a learner does.
action = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=3)), structure="multi_discrete")
observation = {"x": ArraySpec(shape=(1,), dtype="int64", low=0, high=5), "y": ArraySpec(shape=(3,), dtype="float32")}
spec = EnvSpec(name="any", observation=observation, action=action)
for algo in ("ppo", "impala", "dqn", "sac"):
    config = rollmill.make_config("gym/CartPole-v1", {"model.shared": True}, algo=algo)
    make = make_off_policy if config.in_replay else make_on_policy
    assert without_memory(lambda: make(config, spec)) is not None, algo
for method in (Adam(), Adam(kind="adamw"), RMSprop()):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = make_optimiser([parameter], OptimiserConfig(method=method), "cpu")
    parameter.sum().backward()
    optimiser.step()
    load_optimiser_state(optimiser, optimiser_state(optimiser))
    optimiser.zero_grad()
compiler = sorted(name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor", "sympy")))
print(json.dumps({
    "missing": [name for name in preloaded._MODULES if name not in loaded],
    "simulators": sorted(loaded & {"ale_py", "envpool", "minigrid", "mujoco", "vizdoom"}),
    "compiler": compiler,
    "threads": len(os.listdir("/proc/self/task")),
    "uses cuda": torch.cuda.is_initialized(),
    "frozen": gc.get_freeze_count(),
    "is leader of a group": os.getpgid(0) == os.getpid(),
}))
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What a process says that has become a fork server."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_module_that_processes_need_is_imported(report: dict[str, Any]) -> None:
    """An import that fails is not an error there, but costs each process of a run its time."""
    assert report["missing"] == []


def test_the_compiler_is_imported_by_no_network_and_no_optimiser(report: dict[str, Any]) -> None:
    assert report["compiler"] == []


def test_it_has_no_simulators_no_threads_and_no_gpu(report: dict[str, Any]) -> None:
    assert report["simulators"] == []
    assert report["threads"] == 1
    assert not report["uses cuda"]


def test_its_objects_stay_out_of_garbage_collection(report: dict[str, Any]) -> None:
    assert report["frozen"] > 100_000


def test_signals_to_the_programs_group_do_not_reach_it(report: dict[str, Any]) -> None:
    assert report["is leader of a group"]

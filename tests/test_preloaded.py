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
print(json.dumps({
    "missing": [name for name in preloaded._MODULES if name not in loaded],
    "simulators": sorted(loaded & {"ale_py", "envpool", "minigrid", "mujoco", "vizdoom"}),
    "has compiler": "torch._dynamo" in loaded,
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
    assert report["has compiler"], "PyTorch imports it with the first optimiser"


def test_it_has_no_simulators_no_threads_and_no_gpu(report: dict[str, Any]) -> None:
    assert report["simulators"] == []
    assert report["threads"] == 1
    assert not report["uses cuda"]


def test_its_objects_stay_out_of_garbage_collection(report: dict[str, Any]) -> None:
    assert report["frozen"] > 100_000


def test_signals_to_the_programs_group_do_not_reach_it(report: dict[str, Any]) -> None:
    assert report["is leader of a group"]

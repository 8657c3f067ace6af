"""Learning to the published goal, for the tasks that take minutes; ``benchmarks/learning.py`` holds the longer ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("leaves_nothing")]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning.py"
SPEC = importlib.util.spec_from_file_location("benchmark_learning", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
learning = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = learning
sys.path.append(str(SCRIPT.parent))  # where a task's environment is beside the script
SPEC.loader.exec_module(learning)


@pytest.mark.parametrize("name", ["cartpole", "vizdoom_basic", "minigrid_memory", "minigrid_memory_without_core"])
def test_a_task_is_learned_as_claimed(name: str, tmp_path: Path) -> None:
    task = learning.TASKS[name]
    result = learning.train(task, 1, tmp_path / "run", quiet=True)
    assert (result.steps_to_goal is not None) == task.is_reachable, learning.describe(name, 1, task, result)

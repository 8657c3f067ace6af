"""What is defined in a notebook's cells or at a prompt, where no process can import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollmill
from rollmill.envs.errors import UnknownEnvironment

SETTINGS = """
SETTINGS = dict(
    num_envs=4, rollout_length=8, quiet=True, total_steps=320, **{
        "learner.batch_size": 64, "learner.epochs": 1, "learner.minibatches": 1, "learner.precision": "fp32",
        "learner.micro_batch": 64, "learner.channels_last": False, "inference.precision": "fp32",
        "rollout.num_workers": 1, "checkpoint.every_s": None,
    }
)
"""
ENVIRONMENT = """
import gymnasium, numpy as np, rollmill

SCALE = 2.0

def observed(at):
    return np.array([at], np.float32) * SCALE

class My(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.steps = 0
        return observed(self.at), {}

    def step(self, action):
        self.steps += 1
        self.at += int(action)
        return observed(self.at), float(action), False, self.steps == 5, {}
"""
ENCODER = """
def encoder(observation, action, config):
    import torch

    class Layer(torch.nn.Module):
        output_size = 8

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 8)

        def forward(self, observation):
            return self.layer(observation["obs"]).tanh()

    return Layer()

rollmill.register_encoder("mine", encoder)
gymnasium.register("MyOwn-v0", My)
"""
CELLS = [
    ENVIRONMENT + SETTINGS,
    """
import threading

LOCK = threading.Lock()

class Unsendable(My):
    def step(self, action):
        with LOCK:
            return super().step(action)

rollmill.register_env("unsendable", Unsendable)
for environment in (Unsendable, "unsendable"):
    try:
        rollmill.train(environment, run_dir="unsendable", **SETTINGS)
    except TypeError as error:
        assert "%%writefile" in str(error), error
    else:
        raise AssertionError("it was sent")
""",
    """
try:
    rollmill.train(My, run_dir="refused", **SETTINGS, **{"env.kwargs": {"no_such": 1}})
except Exception as error:
    assert "takes no arguments" in str(error), error
else:
    raise AssertionError("it was not refused")
""",
    'rollmill.train("gym/CartPole-v1", run_dir="pole", **SETTINGS)',
    """
run = rollmill.train(My, run_dir="mine", eval_every=160, eval_episodes=2, **SETTINGS)
agent = rollmill.load(run.dir)
assert agent.act(My().reset()[0]) in (0, 1)
assert len(rollmill.evaluate(run.dir, episodes=3).returns) == 3
""",
    ENVIRONMENT.replace("SCALE = 2.0", "\n\nSCALE = 3.0") + ENCODER + ENCODER,  # A cell that was edited and run again.
    'rollmill.train("gym/MyOwn-v0", run_dir="by_id", **SETTINGS, **{"model.encoder": "mine"})',
]


@pytest.mark.slow
@pytest.mark.timeout(600)  # kernels, programs and runs one after another, on a machine that may be busy
@pytest.mark.usefixtures("leaves_nothing")
def test_cells_train_what_they_define(tmp_path: Path) -> None:
    assert _run_cells(CELLS, tmp_path) == []
    # Elsewhere its agent acts without the environment's code, which an evaluation needs.
    assert rollmill.load(tmp_path / "mine").act(np.zeros(1, np.float32)) in (0, 1)
    with pytest.raises(UnknownEnvironment, match="defined in a notebook or at a prompt"):
        rollmill.evaluate(tmp_path / "mine")


def _run_cells(cells: list[str], folder: Path) -> list[str]:
    """Runs cells in a real kernel; gives the errors that they ended with."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}, allow_errors=True
    ).execute()
    return [
        "\n".join([cell.source, *output.traceback])
        for cell in notebook.cells
        for output in cell.outputs
        if output.output_type == "error"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(("how", "what"), [("-", '"my"'), ("-c", "My")])
def test_a_prompt_trains_what_it_defines(tmp_path: Path, how: str, what: str) -> None:
    code = ENVIRONMENT + SETTINGS + 'rollmill.register_env("my", lambda: My())\n'
    code += f'print(rollmill.train({what}, run_dir="mine", **SETTINGS).agent_steps)'
    words, given = ([how, code], None) if how == "-c" else ([how], code)
    done = subprocess.run(
        [sys.executable, *words], input=given, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["320"]

"""Environments and networks of the user's own, as he would write them: in a script, or in a module for ``--import``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gymnasium, numpy as np, rollmill

class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {"where": gymnasium.spaces.Box(-9, 9, (2,), np.float32), "action_mask": gymnasium.spaces.MultiBinary(3)}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def observe(self):
        return {"where": np.array([self.at, self.steps], np.float32), "action_mask": np.array([1, 1, 0], np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.steps = 0
        return self.observe(), {}

    def step(self, action):
        assert action != 2, "a masked action was taken"
        self.steps += 1
        self.at += 2 * int(action) - 1
        return self.observe(), float(self.at > 3), self.at > 3, self.steps >= 9, {}

def encoder(observation, action, config):
    import torch

    class Sum(torch.nn.Module):
        output_size = 8

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 8)

        def forward(self, observation):
            return self.layer(observation["where"]).tanh()

    return Sum()

rollmill.register_encoder("mine", encoder)
SETTINGS = {
    "num_envs": 4, "rollout_length": 8, "learner.batch_size": 64, "learner.epochs": 1, "learner.minibatches": 1,
    "learner.precision": "fp32", "learner.micro_batch": 64, "learner.channels_last": False, "model.encoder": "mine",
    "inference.precision": "fp32", "rollout.num_workers": 1,
}

if __name__ == "__main__":
    rollmill.register_env("my/maze", Maze)
    run = rollmill.train("my/maze", total_steps=800, run_dir="run", quiet=True, **SETTINGS)
    agent = rollmill.load(run.dir)
    print("acts", agent.act(Maze().reset()[0]))
"""


@pytest.mark.usefixtures("leaves_nothing")
def test_an_environment_and_a_network_of_the_user_s_own_script(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "acts" in done.stdout

"""What the runs of a campaign import of the program that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from rollmill.campaigns.program import with_own_code

SCRIPT = """
import gymnasium, numpy
import rollmill

class Short(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.steps += 1
        return numpy.zeros(2, numpy.float32), 1.0, self.steps == 5, False, {}
"""


class Own(gymnasium.Env[int, int]):
    """Of a module, as of this test."""


def test_what_is_built_in_imports_nothing() -> None:
    assert with_own_code("gym/CartPole-v1", {"seed": 1}, algo=None, protocol=None) == {"seed": 1}
    assert with_own_code(Own, {"env.imports": ("mine",)}, algo=None, protocol=None) == {"env.imports": ("mine",)}


def test_a_class_of_a_script_is_imported_from_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\nimport rollmill.campaigns.program as program\n"
        "class Own(gymnasium.Env): pass\n"
        "if __name__ == '__main__':\n"
        "    print(*program.with_own_code(Own, {}, algo=None, protocol=None)['env.imports'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(script)]


def test_a_class_of_a_prompt_is_refused() -> None:
    code = (
        "import gymnasium\nimport rollmill.campaigns.program as program\n"
        "class Own(gymnasium.Env): pass\nprogram.with_own_code(Own, {}, algo=None, protocol=None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "defined in a notebook or at a prompt" in done.stderr


def test_an_algorithm_of_a_script_is_imported_from_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rollmill\nimport rollmill.campaigns.program as program\n"
        "from rollmill.algorithms.ppo import PPO\n"
        "class Mine(PPO): pass\n"
        "rollmill.register_algorithm('mine', Mine)\n"
        "if __name__ == '__main__':\n"
        "    for algo in ('mine', 'ppo'):\n"
        "        for given in ({}, {'imports': ('json',)}):\n"
        "            print(program.with_own_code('gym/CartPole-v1', given, algo=algo, protocol=None))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    found = [eval(line) for line in done.stdout.splitlines()]
    assert found[:2] == [{"env.imports": (str(script),)}, {"env.imports": ("json", str(script))}]
    assert found[2:] == [{}, {"imports": ("json",)}]


@pytest.mark.slow
def test_a_script_sweeps_its_own_environment(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT
        + "if __name__ == '__main__':\n"
        + "    from rollmill import sweep\n"
        + "    settings = dict(num_envs=8, rollout_length=16, total_steps=500)\n"
        + "    settings['learner.batch_size'] = 128\n"
        + "    found = sweep(Short, {'learning_rate': {'low': 1e-4, 'high': 1e-3}}, trials=1, output='out', quiet=True,"
        + " **settings)\n"
        + "    print(found.best.value)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "5.0\n", done.stderr

"""Environments and networks of the user's own, as he would write them: in a script, or in a module for ``--import``."""

from __future__ import annotations

import json
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
rollmill.register_env("my/maze", Maze)
SETTINGS = {
    "num_envs": 4, "rollout_length": 8, "learner.batch_size": 64, "learner.epochs": 1, "learner.minibatches": 1,
    "learner.precision": "fp32", "learner.micro_batch": 64, "learner.channels_last": False, "model.encoder": "mine",
    "inference.precision": "fp32", "rollout.num_workers": 1,
}

if __name__ == "__main__":
    run = rollmill.train("my/maze", total_steps=800, run_dir="run", quiet=True, **SETTINGS)
    agent = rollmill.load(run.dir)
    print("acts", agent.act(Maze().reset()[0]))
"""


NETWORK = """
import rollmill, torch

class Layer(torch.nn.Linear):
    output_size = 3

    def forward(self, observation):
        return super().forward(observation["obs"])

rollmill.register_encoder("layer", lambda observation, action, config: Layer(4, 3))
"""
IMPORTS_NETWORK = """
import network
import rollmill

if __name__ == "__main__":
    small = {"model.encoder": "layer", "num_envs": 2, "rollout.num_workers": 1, "learner.batch_size": 64}
    rollmill.train("gym/CartPole-v1", total_steps=200, run_dir="run", rollout_length=16, quiet=True, **small)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_an_environment_and_a_network_of_the_user_s_own_script(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "acts" in done.stdout
    # The run stores the path of its classes, so they need not be imported by hand.
    command = [sys.executable, "-m", "rollmill", "eval", "run", "--episodes", "3", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["env"] == "my/maze"


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_an_encoder_that_a_script_imports_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "script.py").write_text(IMPORTS_NETWORK)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    command = [sys.executable, "-m", "rollmill", "eval", "run", "--episodes", "1", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(300)  # four programs one after another
@pytest.mark.usefixtures("leaves_nothing")
def test_a_class_itself_is_trained_and_found_again(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    registered = 'rollmill.register_env("my/maze", Maze)\n'
    assert registered in SCRIPT
    script.write_text(SCRIPT.replace(registered, "").replace('train("my/maze"', "train(Maze"))
    commands = (
        [str(script)],
        ["-m", "rollmill", "eval", "run", "--episodes", "3", "--json"],
        [*["-m", "rollmill", "train", "my_script:Maze", "--run-dir", "run", "--total-steps", "1600", "--resume"]],
        [*["-m", "rollmill", "bench", "sim", "my_script:Maze", "--num-envs", "4", "--seconds", "0.2", "--json"]],
    )
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"]["name"] == "my_script:Maze"


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("how", ["script", "import"])
def test_classes_beside_a_file_in_another_folder_are_found(tmp_path: Path, how: str) -> None:
    """The file imports them, registers one with Gymnasium or with us, and everything is run from elsewhere."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "my_classes.py").write_text(SCRIPT.partition("rollmill.register_encoder")[0])
    settings = SCRIPT[SCRIPT.index("SETTINGS") : SCRIPT.index("if __name__")].replace("mine", "auto")
    name = "gym/My-v0" if how == "script" else "my/maze"
    (project / "my_project.py").write_text(
        "import gymnasium, rollmill\nfrom my_classes import Maze\n"
        "gymnasium.register('My-v0', Maze)\n"
        f"rollmill.register_env('my/maze', Maze)\n{settings}\n"
        "if __name__ == '__main__':\n"
        f"    rollmill.train('{name}', total_steps=200, run_dir='run', quiet=True, **SETTINGS)\n"
    )
    words = [str(project / "my_project.py")]
    if how == "import":
        sizes = "--num-envs 4 --rollout-length 8 --learner.batch-size 64 --learner.minibatches 1 --total-steps 200"
        words = ["-m", "rollmill", "train", "--import", "../project/my_project.py", name, "--run-dir", "run"]
        words += sizes.split()
    eval_words = ["-m", "rollmill", "eval", "run", "--episodes", "2", "--json"]
    for command in (words, eval_words):
        done = subprocess.run([sys.executable, *command], cwd=elsewhere, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["env"] == name


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_script_without_the_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import rollmill\nrollmill.train('gym/CartPole-v1', total_steps=1000, run_dir='run', quiet=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "if __name__ == '__main__':" in done.stderr
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_that_could_not_start_leaves_no_run(tmp_path: Path) -> None:
    import rollmill

    with pytest.raises(Exception, match="encoder 'no_such' is not known"):
        rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, **{"model.encoder": "no_such"})
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_resume_with_another_network_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    import rollmill
    from rollmill.settings.run_config import write_config
    from rollmill.settings.run_directory import RunDirectoryError

    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1"))
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(RunDirectoryError, match=r"cannot be resumed with another model\.core, learner\.optimiser"):
        rollmill.train(run_dir=tmp_path, resume=True, **{"model.core": "gru", "learner.optimiser": "rmsprop"})
    assert (tmp_path / "config.json").read_text() == before
    (tmp_path / "config.json").write_text(before[:100])
    with pytest.raises(RunDirectoryError, match=r"config\.json is incomplete"):
        rollmill.train(run_dir=tmp_path, resume=True)


ALGORITHM = """
import rollmill
from rollmill.algorithms.dqn import DQN


class Hopeful(DQN):
    def target(self, batch):
        return super().target(batch) + 1.0


class Youngest:
    def choose(self, completed):
        return max(0, len(completed) - 2)


rollmill.register_algorithm("hopeful", Hopeful)
rollmill.register_remover("youngest", lambda random, priority: Youngest())
SETTINGS = {
    "num_envs": 2, "rollout_length": 8, "total_steps": 300, "replay.capacity": 128, "replay.min_size": 50,
    "replay.remover": "youngest",
    "learner.batch_size": 16, "model.mlp_sizes": "8",
}

if __name__ == "__main__":
    run = rollmill.train("gym/CartPole-v1", algo="hopeful", run_dir="run", quiet=True, **SETTINGS)
    agent = rollmill.load(run.dir)
    assert agent.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    print(run.agent_steps)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_an_algorithm_of_a_script_is_trained_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "hopeful.py").write_text(ALGORITHM)
    done = subprocess.run([sys.executable, "hopeful.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() in ("300", "301"), done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["off_policy"]["algorithm"] == "hopeful"
    again = [sys.executable, "-m", "rollmill", "eval", "run", "--episodes", "2", "--json"]
    result = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert len(json.loads(result.stdout)["returns"]) == 2, result.stderr


RECURRENT_ALGORITHM = """
from dataclasses import replace

import rollmill
from rollmill.algorithms.recurrent_dqn import RecurrentDQN


class Remembers(RecurrentDQN):
    def __init__(self, observation, action, model, config):
        super().__init__(observation, action, replace(model, core="gru", core_size=8), config)


rollmill.register_algorithm("remembers", Remembers)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_an_algorithm_may_have_a_recurrent_state_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "remembers.py").write_text(RECURRENT_ALGORITHM)
    command = [*(sys.executable, "-m", "rollmill", "train", "gym/CartPole-v1", "--algo", "remembers", "--quiet")]
    command += ["--import", "remembers.py", "--num-envs", "2", "--total-steps", "300", "--rollout-length", "24"]
    command += ["--replay.min-size", "100", "--model.mlp-sizes", "8"]
    for length, code, said in ((0, 2, "give their length"), (6, 0, "")):
        words = [*command, "--run-dir", f"run-{length}", "--replay.sequence-length", str(length)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == code, done.stderr
        assert said in done.stderr


# Slow: the script above finds the algorithm by its name as well, and the test of recurrent states imports one this way.
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_an_algorithm_is_trained_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "hopeful.py").write_text(ALGORITHM)
    settings = "--num-envs 2 --total-steps 300 --replay.capacity 256 --replay.min-size 50 --model.mlp-sizes 8 --quiet"
    command = [sys.executable, "-m", "rollmill", "train", "gym/CartPole-v1", "--algo", "hopeful"]
    done = subprocess.run(
        [*command, "--import", "hopeful.py", "--run-dir", "run", *settings.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_module_of_a_package_that_is_run_is_found_again(tmp_path: Path) -> None:
    """``python -m my_package.train``, with relative imports."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("STEPS = 800\n")
    script = SCRIPT.replace("total_steps=800", "total_steps=STEPS")
    (package / "train.py").write_text("from .parts import STEPS\n" + script)
    for command in (["my_package.train"], ["rollmill", "eval", "run", "--episodes", "3", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"]["imports"] == ["my_package.train"]

"""The example that acts with an exported agent, in an interpreter that cannot import Rollmill."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.evaluation.agent import Agent
from rollmill.evaluation.snapshot import Snapshot
from rollmill.exporting.export import export_agent
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model

EXAMPLE = Path(__file__).parents[2] / "examples/act_without_rollmill.py"
# An import of Rollmill or torch fails, whoever asks for it.
WITHOUT = """
import pathlib, runpy, sys
sys.modules |= {"rollmill": None, "torch": None}
sys.argv = sys.argv[1:]
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)  # as `python SCRIPT` has it
runpy.run_path(sys.argv[0])
"""


PARTS = """
import gymnasium, numpy
from gymnasium.spaces import Box, Dict, Discrete

class Parts(gymnasium.ObservationWrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        # One entry is called like an input of recurrent networks, and one choice is not always there.
        mask = Box(0, 1, (2,), numpy.int8)
        self.observation_space = Dict(state=Box(-9, 9, (4,), numpy.float32), side=Discrete(2), action_mask=mask)

    def observation(self, observation):
        side = int(observation[0] > 0)
        mask = numpy.array([1, observation[2] > -0.1], numpy.int8)
        return {"state": observation, "side": side, "action_mask": mask}

gymnasium.register("Parts-v0", Parts)
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an environment with a dict observation."""
    (tmp_path / "cart_in_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "cart_in_parts:Parts-v0"
    sys.modules.pop("cart_in_parts", None)
    gymnasium.registry.pop("Parts-v0", None)


@pytest.mark.slow
@pytest.mark.parametrize(("core", "is_dict"), [("none", False), ("gru", False), ("none", True), ("gru", True)])
def test_it_plays_episodes(core: str, is_dict: bool, parts: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    name = parts if is_dict else "CartPole-v1"
    env = gymnasium.make(name)
    model = ModelConfig(mlp_sizes=(8,), core=core, core_size=8)  # type: ignore[arg-type]
    network = make_model(observation_specs(env.observation_space), action_spec(env.action_space), model)
    snapshot = Snapshot(EnvConfig(name="gym/CartPole-v1"), model, network.state_dict(), 0, Path("initial.pt"))
    agent = Agent(snapshot, env.observation_space, env.action_space)
    export_agent(agent, tmp_path / "agent.onnx", "onnx")
    command = [sys.executable, "-c", WITHOUT, str(EXAMPLE), str(tmp_path / "agent.onnx"), name]
    played = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    returns = [float(number) for number in re.findall(r"episode \d: return ([\d.]+)", played.stdout)]
    expected = []
    for episode in range(5):
        agent.reset()
        observation, _ = env.reset(seed=episode)
        total, has_ended = 0.0, False
        while not has_ended:
            action = agent.act(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, has_ended = total + float(reward), terminated or truncated
        expected.append(total)
    assert returns == expected


@pytest.mark.slow
def test_a_file_that_samples_gets_other_numbers_in_each_step(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    env = gymnasium.make("CartPole-v1")
    model = ModelConfig(mlp_sizes=(8,))
    network = make_model(observation_specs(env.observation_space), action_spec(env.action_space), model)
    snapshot = Snapshot(EnvConfig(name="gym/CartPole-v1"), model, network.state_dict(), 0, Path("initial.pt"))
    agent = Agent(snapshot, env.observation_space, env.action_space)
    export_agent(agent, tmp_path / "agent.onnx", "onnx", sample=True)
    command = [sys.executable, "-c", WITHOUT, str(EXAMPLE), str(tmp_path / "agent.onnx"), "CartPole-v1"]
    played = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    returns = [float(number) for number in re.findall(r"episode \d: return ([\d.]+)", played.stdout)]
    # With the same number in each step, an untrained network would go to one side: at most 11 steps.
    assert max(returns) > 11, played.stderr

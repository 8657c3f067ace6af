"""Exported files act as their agents do, for each kind of network and in each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollmill
from rollmill.algorithms.off_policy_config import SACConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.envs.space_data import decode_spaces, encode_spaces
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.task_spaces import shared_observation
from rollmill.evaluation.agent import TaskSpaces, load
from rollmill.evaluation.saved_spaces import write_spaces
from rollmill.exporting.errors import ExportError
from rollmill.exporting.export import _path_of, export, export_agent
from rollmill.exporting.formats import read_metadata, read_safetensors, run_module
from rollmill.exporting.graph import AgentGraph
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.signed_files import signed
from rollmill.settings.options import from_json, to_json
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

from .conftest import CASES, SAMPLING, SMALL, Case, make_agent

# Traced in seconds, and different enough to find what breaks.
QUICK = ("MLP", "dict observation, dict action", "GRU", "Gaussian, squashed", "DQN, masks")


def check(name: str, folder: Path, format: Any, *, sample: bool = False) -> None:
    """Export a case's agent, which compares the file with ``agent.act``."""
    result = export_agent(make_agent(CASES[name]), folder / "agent", format, sample=sample)
    compared = result.comparison
    assert compared is not None
    assert compared.observations == 1000
    assert compared.differing == 0
    assert compared.difference < 5e-4
    assert result.path.stat().st_size == result.num_bytes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("MLP", "GRU") else pytest.mark.slow) for name in QUICK]
)
def test_onnx_files_act_as_their_agents(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    check(name, tmp_path, "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_torch_files_act_as_their_agents(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, "torch")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_safetensors_hold_all_weights_that_acting_needs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    check(name, tmp_path, "safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["several heads", "SAC"])
def test_files_that_sample_draw_what_their_agents_draw(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    check(name, tmp_path, "onnx", sample=True)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch", "safetensors"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_every_kind_of_network(name: str, format: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    check(name, tmp_path, format)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize("name", SAMPLING)
def test_every_kind_of_sampling(name: str, format: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    check(name, tmp_path, format, sample=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of CartPole that holds two networks, as they were initialised."""
    folder, model = tmp_path / "run", ModelConfig(mlp_sizes=(8,))
    folder.mkdir()
    env = EnvConfig(name="gym/CartPole-v1")
    (folder / "config.json").write_text(json.dumps(signed({**to_json(env), **to_json(model)})))
    spec = probe(env)
    assert spec.spaces is not None
    write_spaces(folder, spec.spaces)
    store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    for steps, metric in ((7, 2.0), (9, 1.0)):
        torch.manual_seed(steps)
        state = {"model": make_model(spec.observation, spec.action, model).state_dict()}
        store.save({**state, "counters": {"agent_steps": steps}}, agent_steps=steps, metric=metric)
    return folder


def test_a_file_says_what_it_is_and_lies_in_the_run(run_dir: Path) -> None:
    result = rollmill.export(run_dir, format="torch")
    assert result.path == run_dir / "agent.pt2"
    found = read_metadata(result.path.read_bytes(), "torch")
    assert found == result.metadata
    assert (found["environment"], found["agent_steps"], found["samples"]) == ("gym/CartPole-v1", 9, False)
    assert found["rollmill"] == rollmill.__version__
    agent = load(run_dir)
    spaces = decode_spaces(found["spaces"])
    assert (spaces.observation, spaces.action) == (agent.observation_space, agent.action_space)
    assert found["inputs"] == [{"name": "obs", "role": "observation", "dtype": "float32", "shape": [4], "path": []}]
    assert [each["name"] for each in found["outputs"]] == ["action", "log_prob", "value"]
    assert str(run_dir) not in json.dumps(found)
    assert "1,000 random observations" not in result.describe().splitlines()[0]
    assert "obs float32 [N, 4]" in result.describe()
    assert json.loads(json.dumps(result.to_dict()))["checked"]["observations"] == 1000


def test_a_checkpoint_and_a_file_may_be_named(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "deep/file.pt2", checkpoint="best")
    assert result.format == "torch"
    assert result.path == tmp_path / "deep/file.pt2"
    assert result.metadata["agent_steps"] == 7
    assert [path.name for path in result.path.parent.iterdir()] == ["file.pt2"]


def test_weights_and_settings_of_safetensors_make_the_network_again(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    case = CASES["SAC"]
    agent = make_agent(case)
    content = export_agent(agent, tmp_path / "agent.safetensors", "safetensors").path.read_bytes()
    found, weights = read_metadata(content, "safetensors"), read_safetensors(content)
    spaces = decode_spaces(found["spaces"])
    settings = found["settings"]
    algorithm = make_algorithm(
        observation_specs(spaces.observation),
        action_spec(spaces.action).in_unit_box,
        from_json(ModelConfig, {"model": settings["model"]}),
        from_json(SACConfig, {key: value for key, value in settings.items() if key != "model"}),
    )
    missing, unexpected = algorithm.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not [name for name in missing if name.startswith("acting.")]
    observation = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    chosen = algorithm.act({"obs": torch.from_numpy(observation)}, None, None).continuous
    assert chosen is not None
    low, high = spaces.action.low, spaces.action.high  # type: ignore[attr-defined]
    scaled = low + (chosen.numpy() + 1.0) / 2.0 * (high - low)
    np.testing.assert_allclose(agent.act(observation, deterministic=True), scaled, atol=1e-5)


@pytest.mark.parametrize("told", [True, False])
def test_a_task_is_acted_in_its_own_spaces(told: bool, tmp_path: Path) -> None:
    from gymnasium import spaces

    own, other = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (5,), np.float32)
    shared = shared_observation(["a", "b"], [own, other], with_task=told)
    task = TaskSpaces(shared, spaces.Discrete(6), 0)
    model = ModelConfig(mlp_sizes=(16,), observe_task=told, normalise_observations=True)
    agent = make_agent(Case(own, spaces.Discrete(3), model, OnPolicyConfig(), False, task))
    result = export_agent(agent, tmp_path / "agent.pt2", "torch", task="a")
    assert result.comparison is not None
    assert result.comparison.differing == 0
    assert [port.describe() for port in result.inputs] == ["obs float32 [N, 2]"]
    assert result.metadata["task"] == "a"


def test_a_mask_that_forbids_all_choices_of_a_task_frees_these_alone(tmp_path: Path) -> None:
    from gymnasium import spaces

    own = spaces.Box(-1, 1, (2,), np.float32)
    task = TaskSpaces(shared_observation(["a", "b"], [own, own], with_task=False), spaces.Discrete(6), 0)
    model = ModelConfig(mlp_sizes=(16,))
    agent = make_agent(Case(own, spaces.Discrete(3), model, OnPolicyConfig(), needs_mask=True, task=task))
    graph = AgentGraph(agent)
    rows = 200
    given = {"obs": np.random.default_rng(0).normal(size=(rows, 2)), "action_mask": np.zeros((rows, 3))}
    given["action_mask"][0, 1] = 1
    arrays = {port.name: given[port.name].astype(port.dtype) for port in graph.inputs}
    action = run_module(graph)(arrays)["action"]
    assert action[0] == 1
    assert action.max() <= 2


@pytest.mark.parametrize(
    ("tasks", "file"),
    [
        (("gym/CartPole-v1", "envpool/CartPole-v1"), "agent-gym_CartPole-v1.onnx"),
        (("gym/CartPole-v1", "b"), "agent-CartPole-v1.onnx"),
    ],
)
def test_files_of_tasks_have_names_of_their_own(tasks: tuple[str, ...], file: str, tmp_path: Path) -> None:
    assert _path_of(tmp_path, "onnx", "gym/CartPole-v1", tasks).name == file
    assert _path_of(tmp_path, "onnx", None, tasks).name == "agent.onnx"


def test_what_cannot_be_exported_is_refused_with_the_reason(run_dir: Path) -> None:
    with pytest.raises(ExportError, match="format 'tflite' was given; choose one of onnx, torch, safetensors"):
        export(run_dir, format="tflite")
    with pytest.raises(ExportError, match=r"the format is torch, but a\.onnx ends like a file of the format onnx"):
        export(run_dir, "a.onnx", format="torch")
    with pytest.raises(ExportError, match=r"a\.txt ends like a file of no known format: end the name with \.onnx, "):
        export(run_dir, "a.txt")
    with pytest.raises(ExportError, match="safetensors holds weights, not how to act: choose onnx or torch"):
        export(run_dir, format="safetensors", sample=True)
    with pytest.raises(ExportError, match=r"DQN has no probabilities to sample from.*leave out --sample"):
        export_agent(make_agent(CASES["DQN"]), run_dir / "agent.pt2", "torch", sample=True)
    assert not list(run_dir.glob("agent*"))


def test_a_place_that_takes_no_file_is_named(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"file/agent.onnx cannot be written \(File exists\).*--output"):
        export(run_dir, tmp_path / "file" / "agent.onnx")


def test_spaces_are_null_where_they_have_no_form_as_data(tmp_path: Path) -> None:
    from gymnasium import spaces

    odd = spaces.Dict({7: CASES["MLP"].observation})  # type: ignore[dict-item]
    assert encode_spaces(odd, CASES["MLP"].action) is None
    agent = make_agent(Case(odd, CASES["MLP"].action, SMALL))
    result = export_agent(agent, tmp_path / "agent.pt2", "torch")
    assert result.metadata["spaces"] is None
    assert [port.describe() for port in result.inputs] == ["7 float32 [N, 6]"]

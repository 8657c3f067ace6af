"""Files: what they hold, and what is said where one cannot be made."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rollmill.envs.errors import MissingExtra
from rollmill.exporting import formats
from rollmill.exporting.errors import ExportError
from rollmill.exporting.formats import (
    FORMATS,
    read_metadata,
    run_module,
    run_onnx,
    run_torch,
    to_onnx,
    to_safetensors,
    to_torch,
    weights_of,
)
from rollmill.exporting.graph import AgentGraph
from rollmill.models import observation as observation_module
from rollmill.models.actor_critic import is_of_critic
from rollmill.models.config import ModelConfig
from rollmill.models.observation import register_encoder

from .conftest import CASES, VECTOR, Case, make_agent

METADATA = {"format": 1, "name": "ä"}


@pytest.fixture
def graph() -> AgentGraph:
    return AgentGraph(make_agent(CASES["MLP"]))


def batch(rows: int) -> dict[str, Any]:
    return {"obs": np.random.default_rng(rows).normal(size=(rows, 6)).astype(np.float32)}


@pytest.mark.parametrize("rows", [1, 2, 200])
def test_a_torch_file_takes_any_number_of_rows_and_tells_nothing_of_this_machine(graph: AgentGraph, rows: int) -> None:
    content = to_torch(graph, METADATA)
    found, expected = run_torch(content)(batch(rows)), run_module(graph)(batch(rows))
    assert str(Path(formats.__file__).parent).encode() not in content
    assert list(found) == ["action", "log_prob", "value"]
    np.testing.assert_array_equal(found["action"], expected["action"])
    np.testing.assert_allclose(found["value"], expected["value"], atol=1e-5)


def test_an_onnx_file_takes_any_number_of_rows_and_tells_nothing_of_this_machine(graph: AgentGraph) -> None:
    pytest.importorskip("onnxruntime")
    content = to_onnx(graph, METADATA)
    run = run_onnx(content)
    assert run is not None
    for rows in (1, 2, 200):
        np.testing.assert_array_equal(run(batch(rows))["action"], run_module(graph)(batch(rows))["action"])
    assert str(Path(formats.__file__).parent).encode() not in content
    assert b"forward" not in content


def test_every_file_holds_the_metadata(graph: AgentGraph) -> None:
    assert read_metadata(to_torch(graph, METADATA), "torch") == METADATA
    pytest.importorskip("safetensors")
    assert read_metadata(to_safetensors(graph, METADATA), "safetensors") == METADATA
    pytest.importorskip("onnx")
    assert read_metadata(to_onnx(graph, METADATA), "onnx") == METADATA
    assert set(FORMATS) == {"torch", "safetensors", "onnx"}


@pytest.mark.parametrize("kind", ["torch", "safetensors", "onnx"])
def test_another_file_is_told_apart(kind: Any) -> None:
    if kind == "onnx":
        pytest.importorskip("onnx")
    with pytest.raises(ExportError, match=f"not a file of `rollmill export --format {kind}`"):
        read_metadata(b"\x08\x00\x00\x00\x00\x00\x00\x00{}", kind)


def test_only_weights_that_acting_needs_are_held() -> None:
    agent = make_agent(CASES["SAC, CNN"])
    names = set(weights_of(AgentGraph(agent)))
    assert names == {name for name in agent.algorithm.state_dict() if name.startswith("acting.")}
    assert any(name.startswith("critics.") for name in agent.algorithm.state_dict())


def test_a_critic_that_an_agent_lacks_is_left_out() -> None:
    graph = AgentGraph(make_agent(CASES["critic of all agents"]))
    names = {name for name in graph.algorithm.state_dict() if not is_of_critic(name)}
    assert set(weights_of(graph)) == names
    assert "acting.heads.policy.weight" in names


@pytest.mark.parametrize(
    ("package", "make", "message"),
    [
        ("onnx", to_onnx, "ONNX needs packages that are missing .*: pip install onnx onnxscript safetensors"),
        ("onnxscript", to_onnx, "pip install onnx onnxscript safetensors"),
        (
            "safetensors.torch",
            to_safetensors,
            "safetensors is not installed .*: pip install onnx onnxscript safetensors",
        ),
    ],
)
def test_a_missing_package_is_named(
    graph: AgentGraph, package: str, make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]  # so that importing it fails
    with pytest.raises(MissingExtra, match=message):
        make(graph, METADATA)


def test_without_onnxruntime_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]  # so that importing it fails
    assert run_onnx(b"") is None


class Summing(nn.Module):
    """A user's encoder of plain operations."""

    output_size = 3

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.sin(self.layer(observation["obs"]).cumsum(-1))


class Branching(Summing):
    """Does what depends on numbers in the observation."""

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        features = super().forward(observation)
        return features * 2.0 if bool(observation["obs"].sum() > 0) else features


class Counting(Summing):
    """Fixes the number of rows while it is traced."""

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        x = observation["obs"]
        return super().forward({"obs": x.reshape(len(x), 6)})


class Inverting(Summing):
    """Has an operation that ONNX lacks."""

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.special.ndtri(torch.sigmoid(super().forward(observation)))


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation_module.ENCODERS, "factories", {})
    for kind in (Summing, Branching, Counting, Inverting):
        register_encoder(kind.__name__, kind)


def graph_with(encoder: str) -> AgentGraph:
    return AgentGraph(make_agent(Case(VECTOR, CASES["MLP"].action, ModelConfig(encoder=encoder))))


@pytest.mark.usefixtures("users")
def test_a_users_encoder_that_can_be_traced_is_exported() -> None:
    graph = graph_with("Summing")
    found, expected = run_torch(to_torch(graph, METADATA))(batch(4)), run_module(graph)(batch(4))
    np.testing.assert_allclose(found["value"], expected["value"], atol=1e-5)


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("name", ["Branching", "Counting"])
def test_a_users_encoder_that_cannot_be_traced_is_named(name: str) -> None:
    with pytest.raises(ExportError, match=rf"the network \({name}\) cannot be traced by torch.export .*safetensors"):
        to_torch(graph_with(name), METADATA)


@pytest.mark.usefixtures("users")
def test_an_operation_that_onnx_lacks_is_an_error() -> None:
    pytest.importorskip("onnx")
    graph = graph_with("Inverting")
    assert to_torch(graph, METADATA)
    with pytest.raises(ExportError, match=r"the network \(Inverting\) has an operation that torch.onnx does not"):
        to_onnx(graph, METADATA)


@pytest.mark.slow
def test_entries_may_have_names_that_the_graph_uses_inside() -> None:
    onnx = pytest.importorskip("onnx")
    box = spaces.Box(-1, 1, (3,), np.float32)

    def exported(*names: str) -> tuple[AgentGraph, bytes]:
        graph = AgentGraph(make_agent(Case(spaces.Dict(dict.fromkeys(names, box)), spaces.Discrete(3))))
        return graph, to_onnx(graph, METADATA)

    plain = onnx.load_from_string(exported("a", "b", "c")[1]).graph
    inner = [plain.initializer[0].name, plain.node[0].output[0]]
    graph, content = exported(*inner, "linear")
    onnx.checker.check_model(onnx.load_from_string(content))
    assert [port.name for port in graph.inputs] == [item.name for item in onnx.load_from_string(content).graph.input]
    if (run := run_onnx(content)) is not None:
        seen = {name: np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32) for name in (*inner, "linear")}
        np.testing.assert_array_equal(run(seen)["action"], run_module(graph)(seen)["action"])


def test_a_file_that_onnxruntime_does_not_read_is_an_error() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ExportError, match="onnxruntime does not read the file"):
        run_onnx(b"nothing")

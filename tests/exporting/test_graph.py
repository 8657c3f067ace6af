"""The graph's inputs and outputs, and their conversion, against the codecs of the environments' side."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rollmill.envs.actions import ActionCodec
from rollmill.envs.spaces import ObservationCodec, action_spec
from rollmill.exporting.acting import Acted
from rollmill.exporting.check import compare
from rollmill.exporting.formats import run_module
from rollmill.exporting.graph import AgentGraph, _Actions, _Entry
from rollmill.exporting.ports import Role
from rollmill.models.config import ModelConfig
from rollmill.specs import BoxActions

from .conftest import BOX, CASES, FREE, MIXED_ACTION, MIXED_OBSERVATION, Case, Space, make_agent


def test_observations_become_what_slots_hold() -> None:
    space = batch_space(MIXED_OBSERVATION, 7)
    space.seed(0)
    observation, codec = space.sample(), ObservationCodec(MIXED_OBSERVATION)
    slots = {name: np.empty((7, *spec.shape), spec.dtype) for name, spec in codec.specs.items()}
    codec.write(observation, slots)
    for leaf in codec.leaves:
        value = observation
        for key in leaf.path:
            value = value[key]
        found = _Entry(leaf)(torch.from_numpy(np.asarray(value))).numpy()
        assert found.dtype == slots[leaf.name].dtype
        np.testing.assert_array_equal(found, slots[leaf.name], err_msg=leaf.name)


@pytest.mark.parametrize("box", ["clip", "tanh", "scale"])
@pytest.mark.parametrize(
    "space",
    [
        BOX,
        FREE,
        MIXED_ACTION,
        spaces.Discrete(3, start=4),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiBinary(4),
        spaces.Tuple(
            [spaces.Box(-1e-3, 2.0, (2, 2), np.float64), spaces.Discrete(2), spaces.Box(0, 1, (), np.float16)]
        ),
    ],
)
def test_stored_actions_become_those_of_the_environment(space: Space, box: BoxActions) -> None:
    spec = action_spec(space)
    if box != "clip" and space is FREE:
        pytest.skip("it has no bounds")
    random = np.random.default_rng(0)
    discrete = random.integers(spec.categorical_sizes, size=(9, spec.num_discrete)).astype(np.int32)
    continuous = (3.0 * random.normal(size=(9, spec.num_continuous))).astype(np.float32)
    codec = ActionCodec(spec, box)
    expected, actions = codec.decode_batch(discrete, continuous), _Actions(spec, codec)
    found = actions(Acted(torch.from_numpy(discrete), torch.from_numpy(continuous)))
    assert [port.name for port in actions.ports] == list(found)
    for port in actions.ports:
        part = expected
        for key in port.path:
            part = part[key]
        array = found[port.name].numpy()
        assert (str(array.dtype), array.shape[1:]) == (port.dtype, port.shape)
        assert array.dtype == part.dtype
        np.testing.assert_allclose(array, part, rtol=2e-3 if port.dtype == "float16" else 1e-6, atol=1e-7)


def test_names_are_those_of_the_environment() -> None:
    graph = AgentGraph(make_agent(CASES["dict observation, dict action"]), sample=True)
    assert [port.describe() for port in graph.inputs] == [
        "camera uint8 [N, 24, 24, 3]",
        "where int64 [N]",
        "deep/cells int64 [N, 2]",
        "deep/flags int8 [N, 4]",
        "pair/0 float64 [N, 2]",
        "pair/1 int64 [N]",
        "grid int64 [N, 2, 2]",
        "lamps int8 [N, 2, 3]",
        "state float32 [N, 3]",
        "uniform float32 [N, 10]",
        "normal float32 [N, 2]",
    ]
    assert [port.describe() for port in graph.outputs] == [
        "action/steer float32 [N, 2]",
        "action/gear int64 [N]",
        "action/lights int64 [N, 3]",
        "log_prob float32 [N]",
        "value float32 [N]",
    ]


def test_an_entry_called_state_is_not_the_recurrent_state() -> None:
    case = Case(
        MIXED_OBSERVATION, CASES["MLP"].action, ModelConfig(mlp_sizes=(8,), dense_size=8, core="gru", core_size=5)
    )
    agent = make_agent(case)
    graph = AgentGraph(agent)
    described = [port.describe() for port in graph.inputs]
    assert "observation/state float32 [N, 3]" in described
    assert "state float32 [N, 5]" in described
    assert compare(agent, graph, run_module(graph), observations=100).differing == 0


def test_an_entry_called_action_is_not_the_action() -> None:
    spaces_with = spaces.Dict({"action": spaces.Box(-1, 1, (2,), np.float32), "value": spaces.Discrete(3)})
    agent = make_agent(Case(spaces_with, CASES["MLP"].action, ModelConfig(mlp_sizes=(8,))))
    graph = AgentGraph(agent)
    assert {port.name for port in graph.inputs} == {"observation/action", "observation/value"}
    assert {port.name for port in graph.outputs} >= {"action", "value"}
    assert compare(agent, graph, run_module(graph), observations=100).differing == 0


@pytest.mark.parametrize("sample", [False, True], ids=["best", "sampled"])
@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("action", [spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)], ids=str)
def test_entries_may_have_every_name_of_an_input_or_output(
    action: Space, core: Literal["none", "gru"], sample: bool
) -> None:
    names = set(get_args(Role)) - {"action_mask"}  # where a mask of actions is
    # As wide as the noise of these actions, so that one would do for the other.
    observation = spaces.Dict({name: spaces.Box(-1.0, 1.0, (2,), np.float32) for name in sorted(names)})
    model = ModelConfig(mlp_sizes=(8,), dense_size=8, core=core, core_size=5)
    agent = make_agent(Case(observation, action, model))
    graph = AgentGraph(agent, sample=sample)
    own = {port.name for port in (*graph.inputs, *graph.outputs) if port.role != "observation"}
    entries = [port.name for port in graph.inputs if port.role == "observation"]
    assert set(entries) == {f"observation/{name}" if name in own else name for name in names}
    assert compare(agent, graph, run_module(graph), observations=100).differing == 0


def test_an_entry_is_told_apart_from_other_entries() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    observation = spaces.Dict(observation=spaces.Dict(value=spaces.Box(-1.0, 1.0, (3,), np.float32)), value=box)
    agent = make_agent(Case(observation, CASES["MLP"].action, ModelConfig(mlp_sizes=(8,))))
    graph = AgentGraph(agent)
    assert [port.name for port in graph.inputs] == ["observation/value", "observation/observation/value"]
    assert compare(agent, graph, run_module(graph), observations=100).differing == 0


def test_actions_are_in_their_space() -> None:
    for name in ("Gaussian, clipped", "Gaussian, scaled", "Gaussian, squashed", "SAC", "TD3"):
        run = run_module(AgentGraph(make_agent(CASES[name])))
        actions = run({"obs": 100.0 * np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)})["action"]
        assert all(BOX.contains(action) for action in actions), name
        assert np.ptp(actions, axis=0).min() > 0.1, name


def test_the_agent_keeps_its_network() -> None:
    agent = make_agent(CASES["SAC"])
    before = {name: value.clone() for name, value in agent.algorithm.state_dict().items()}
    graph = AgentGraph(agent)
    with torch.no_grad():
        for value in graph.state_dict().values():
            value.zero_()
    assert before.keys() == agent.algorithm.state_dict().keys()
    for name, value in agent.algorithm.state_dict().items():
        torch.testing.assert_close(value, before[name])

"""The comparison finds files that do not act as their agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollmill.exporting.check import compare
from rollmill.exporting.errors import ExportError
from rollmill.exporting.formats import run_module
from rollmill.exporting.graph import AgentGraph

from .conftest import CASES, make_agent

Arrays = Mapping[str, NDArray[Any]]
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("name", CASES)
def test_the_graph_itself_acts_as_the_agent(name: str) -> None:
    agent = make_agent(CASES[name])
    graph = AgentGraph(agent)
    found = compare(agent, graph, run_module(graph), observations=100)
    assert (found.observations, found.differing) == (100, 0)
    assert found.difference < 1e-5


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("MLP", lambda out: out.update(action=(out["action"] + 1) % 5), r"another action .* for \d+ of 100"),
        ("SAC", lambda out: out.update(action=out["action"] * 1.01), "'action' of the file differs .* by"),
        ("SAC", lambda out: out.update(action=out["action"] * np.nan), "'action' of the file differs"),
        (
            "SAC",
            lambda out: out.update(action=out["action"][:, :2]),
            r"'action' of the file is float32 of shape \(1, 2\)",
        ),
        ("MLP", lambda out: out.update(value=out["value"] + 0.1), "'value' of the file differs"),
        ("GRU", lambda out: out.update(next_state=out["next_state"] * 0.9), "'next_state' of the file differs"),
    ],
)
def test_a_wrong_file_is_found(name: str, change: Change, message: str) -> None:
    agent = make_agent(CASES[name])
    graph = AgentGraph(agent)
    run = run_module(graph)

    def wrong(inputs: Arrays) -> Arrays:
        found = dict(run(inputs))
        change(found)
        return found

    with pytest.raises(ExportError, match=message):
        compare(agent, graph, wrong, observations=100)


@pytest.mark.parametrize("ignored", ["reset", "state", "action_mask", "uniform"])
def test_a_file_that_ignores_an_input_is_found(ignored: str) -> None:
    agent = make_agent(CASES["masks" if ignored == "action_mask" else "GRU"])
    graph = AgentGraph(agent, sample=True)
    run = run_module(graph)

    def wrong(inputs: Arrays) -> Arrays:
        return run({**inputs, ignored: np.full_like(inputs[ignored], 0.5)})

    with pytest.raises(ExportError, match=r"of the file differs|another action"):
        compare(agent, graph, wrong, observations=100)

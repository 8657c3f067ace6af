"""Does a file act as its agent does? Both get the same random observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollmill.envs.spaces import ACTION_MASK, without_mask
from rollmill.evaluation.agent import Agent
from rollmill.exporting.errors import ExportError
from rollmill.exporting.formats import Run, run_module
from rollmill.exporting.graph import NEXT_STATE, AgentGraph
from rollmill.exporting.ports import Port

OBSERVATIONS = 1000
"""How many observations are compared."""

TOLERANCE = 1e-3
"""Largest difference of a number that is taken for rounding, relative to numbers above 1."""

_ROWS = (1, 9)  # a single observation, and a batch
_MOST_FLIPS = 0.005  # share of choices between two that are almost equally good
_WIDE = 100.0  # numbers further out, in a space with bounds that stand for none, are drawn closer to 0
_SHARE_OF_RESETS = 0.1
_PICTURE_AXES = 2  # pictures and sounds have more, with that of the batch

Array = NDArray[Any]


class Comparison(NamedTuple):
    """Result of a comparison.

    Attributes:
        observations: Number of observations.
        differing: Number of them for which another choice was made; 0 for actions without choices.
        largest: Output -> largest absolute difference; of actions, only those of real numbers.
    """

    observations: int
    differing: int
    largest: Mapping[str, float]

    @property
    def difference(self) -> float:
        """The largest difference of any output."""
        return max(self.largest.values(), default=0.0)


def compare(
    agent: Agent, graph: AgentGraph, run: Run, *, observations: int = OBSERVATIONS, seed: int = 0
) -> Comparison:
    """Compare what a file does with what its agent does, on random observations, alone and in batches.

    Actions are compared with those of ``agent.act``; states, log-probabilities and values with those of the network.
    Recurrent policies see sequences, in which episodes begin at random steps.

    Args:
        agent: The agent; its recurrent state is reset.
        graph: What was exported of it.
        run: Runs the file.
        observations: How many.
        seed: Of the observations.

    Raises:
        ExportError: They differ by more than rounding.
    """
    random = np.random.default_rng(seed)
    network = run_module(graph)
    largest: dict[str, float] = {}
    differing = compared = 0
    try:
        for rows in _ROWS:
            agent.reset()
            walk, state = _Walk(agent, graph, rows, random), None
            for _ in range(max(1, observations // sum(_ROWS))):
                inputs, action = walk.step(state)
                expected = {**network(inputs), **_components(graph, action, rows)}
                found = run(inputs)
                differs = _differing_rows(graph, expected, found, rows)
                differing, compared = differing + int(differs.sum()), compared + rows
                # Where choices are sampled, another one has another probability.
                kept = ~differs if graph.samples else np.ones(rows, bool)
                for port in graph.outputs:
                    if port.dtype.startswith("float"):
                        difference = _difference(port, expected[port.name][kept], found[port.name][kept])
                        largest[port.name] = max(largest.get(port.name, 0.0), difference)
                state = expected.get(NEXT_STATE)
    finally:
        agent.reset()
    if differing > _MOST_FLIPS * compared:
        raise ExportError(
            f"the file chose another action than agent.act for {differing} of {compared} observations: it would not "
            "act as the agent does, and was not written; please report this with the run's config.json"
        )
    return Comparison(compared, differing, largest)


class _Walk:
    """Shows an agent random observations, step by step, in sequences of the same rows.

    Args:
        agent: The agent.
        graph: What was exported of it.
        rows: Observations at a time; a single one is given without a batch axis.
        random: Generator.
    """

    def __init__(self, agent: Agent, graph: AgentGraph, rows: int, random: np.random.Generator) -> None:
        self._agent, self._graph, self._rows, self._random = agent, graph, rows, random
        self._space = batch_space(without_mask(agent.observation_space), rows)
        self._space.seed(int(random.integers(2**31)))
        self._is_begin = True

    def step(self, state: Array | None) -> tuple[dict[str, Array], Any]:
        """Return the file's inputs, and the agent's action.

        Args:
            state: The recurrent state after the last step; None before the first one.
        """
        rows, graph = self._rows, self._graph
        observation = _varied(self._space.sample(), self._random)
        inputs = {}
        for port in graph.inputs:
            if port.role == "observation":
                inputs[port.name] = np.asarray(_part(observation, port.path), port.dtype).reshape(rows, *port.shape)
            elif port.role == "action_mask":
                inputs[port.name] = _random_mask(graph.choices, rows, self._random)
            elif port.role == "state":
                # The state of a row that is reset does not count.
                before = self._random.normal(size=(rows, *port.shape)) if state is None else state
                inputs[port.name] = before.astype(np.float32)
            elif port.role == "reset":
                inputs[port.name] = self._reset()
        if graph.samples:
            generator = torch.Generator().set_state(self._agent.generator.get_state())
            inputs |= {name: noise.numpy() for name, noise in graph.acting.noise(rows, generator).items()}
        mask, is_single = inputs.get(ACTION_MASK), rows == 1
        action = self._agent.act(
            _first(observation) if is_single else observation,
            deterministic=not graph.samples,
            action_mask=mask[0] if is_single and mask is not None else mask,
        )
        return inputs, action

    def _reset(self) -> NDArray[np.bool_]:
        """Begin episodes in some rows, in all of them at first."""
        is_first = self._random.random(self._rows) < _SHARE_OF_RESETS
        if self._is_begin:
            is_first[:] = True
        else:
            self._agent.reset(is_first)
        self._is_begin = False
        return is_first


def _components(graph: AgentGraph, action: Any, rows: int) -> dict[str, Array]:
    """Return an action of the agent as outputs of the file."""
    return {
        port.name: np.asarray(_part(action, port.path), port.dtype).reshape(rows, *port.shape)
        for port in graph.outputs
        if port.role == "action"
    }


def _differing_rows(
    graph: AgentGraph, expected: Mapping[str, Array], found: Mapping[str, Array], rows: int
) -> NDArray[np.bool_]:
    """Return in which rows another choice was made, bool ``[N]``."""
    differs = np.zeros(rows, bool)
    for port in graph.outputs:
        if port.role == "action" and port.dtype == "int64":
            differs |= (expected[port.name] != found[port.name]).reshape(rows, -1).any(1)
    return differs


def _difference(port: Port, expected: Array, found: Array) -> float:
    """Return the largest absolute difference of an output.

    Raises:
        ExportError: It is more than rounding.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        raise ExportError(
            f"the output {port.name!r} of the file is {found.dtype} of shape {found.shape}; it should be "
            f"{expected.dtype} of shape {expected.shape}: please report this with the run's config.json"
        )
    with np.errstate(invalid="ignore"):
        difference = np.where(expected == found, 0.0, np.abs(expected.astype(np.float64) - found))
        allowed = max(TOLERANCE, 2.0 * float(np.finfo(expected.dtype).eps)) * np.maximum(1.0, np.abs(expected))
    if not (difference <= allowed).all():
        raise ExportError(
            f"the output {port.name!r} of the file differs from the agent's by {difference.max():.3g}: the file would "
            "not act as the agent does, and was not written; please report this with the run's config.json"
        )
    return float(difference.max(initial=0.0))


def _random_mask(choices: Sequence[int], rows: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return masks of allowed choices, with at least one of each head, bool ``[N, M]``."""
    parts = []
    for size in choices:
        part = random.random((rows, size)) < 0.5
        part[np.arange(rows), random.integers(size, size=rows)] = True
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _varied(sample: Any, random: np.random.Generator) -> Any:
    """Replace numbers that are far from 0, where bounds stand for no bounds, and vary the contrast of pictures.

    A network sees nearly the same in all pictures of uniform noise.
    """
    if isinstance(sample, Mapping):
        return {key: _varied(each, random) for key, each in sample.items()}
    if isinstance(sample, tuple):
        return tuple(_varied(each, random) for each in sample)
    array = np.asarray(sample)
    if array.dtype.kind == "u" and array.ndim > _PICTURE_AXES:
        return (array * random.random((len(array), *[1] * (array.ndim - 1)))).astype(array.dtype)
    if array.dtype.kind != "f":  # Choices and signs: smaller ones may not exist.
        return array
    return np.where(np.abs(array) <= _WIDE, array, random.normal(size=array.shape)).astype(array.dtype)


def _first(sample: Any) -> Any:
    """Return the first of a batch of observations."""
    if isinstance(sample, Mapping):
        return {key: _first(each) for key, each in sample.items()}
    return tuple(map(_first, sample)) if isinstance(sample, tuple) else sample[0]


def _part(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value

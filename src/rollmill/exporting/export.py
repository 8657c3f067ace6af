"""Export an agent of a run into a file that acts without Rollmill."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

import rollmill
from rollmill.envs.space_data import encode_spaces
from rollmill.evaluation.agent import Agent, load
from rollmill.evaluation.snapshot import folder_of_policy
from rollmill.exporting.check import OBSERVATIONS, Comparison, compare
from rollmill.exporting.errors import ExportError
from rollmill.exporting.formats import (
    FORMATS,
    Format,
    Run,
    read_safetensors,
    run_module,
    run_onnx,
    run_torch,
    to_onnx,
    to_safetensors,
    to_torch,
)
from rollmill.exporting.graph import AgentGraph
from rollmill.exporting.ports import Port
from rollmill.settings.options import to_json
from rollmill.storage.whole_files import write_whole

_FORMAT = 1  # of the metadata


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported agent.

    Attributes:
        path: The file.
        format: "onnx", "torch" or "safetensors".
        metadata: What the file says of itself.
        num_bytes: Size of the file.
        inputs: What the agent takes; of safetensors, what the network of these weights takes.
        outputs: What it returns, likewise.
        comparison: Result of comparing the file with ``agent.act``; None where onnxruntime is not installed.
    """

    path: Path
    format: Format
    metadata: Mapping[str, Any] = field(repr=False)
    num_bytes: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    comparison: Comparison | None

    def describe(self) -> str:
        """Return the result as a few lines of text."""
        lines = [f"{self.path} ({self.format}, {self.num_bytes / 1024:,.0f} KiB)"]
        if self.format != "safetensors":
            lines += _listed("inputs", self.inputs) + _listed("outputs", self.outputs)
        if self.comparison is None:
            lines.append("  not checked: onnxruntime is not installed (pip install onnxruntime)")
            return "\n".join(lines)
        count, differing = self.comparison.observations, self.comparison.differing
        largest = ", ".join(f"{name} {value:.1e}" for name, value in self.comparison.largest.items())
        lines.append(f"  checked  against agent.act on {count:,} random observations")
        if any(port.role == "action" and port.dtype == "int64" for port in self.outputs):
            lines.append(f"           other choices: {differing}")
        if largest:
            lines.append(f"           largest differences: {largest}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        compared = self.comparison
        return {
            "path": str(self.path),
            "format": self.format,
            "num_bytes": self.num_bytes,
            "metadata": dict(self.metadata),
            "checked": None
            if compared is None
            else {
                "observations": compared.observations,
                "differing": compared.differing,
                "largest": dict(compared.largest),
            },
        }


def export(
    run_dir: Path | str,
    output: Path | str | None = None,
    *,
    format: str | None = None,
    checkpoint: str | Path = "latest",
    policy: str | None = None,
    task: str | None = None,
    sample: bool = False,
    trust: bool = False,
) -> ExportResult:
    """Export a run's agent into a file, and check that the file acts as the agent does.

    The file is written only if it does (docs/export.md describes the formats).

    Args:
        run_dir: Directory of a run, finished or not.
        output: The file; None is ``agent.onnx``, ``agent.pt2`` or ``agent.safetensors`` in the run's directory.
        format: "onnx" or "torch", which hold the whole agent, or "safetensors", which holds its weights. None follows
            from the ending of ``output``, and is ONNX without one that says it.
        checkpoint: As for ``rollmill.load``.
        policy: Name of the policy, in a run with several.
        task: Name of the task to act in, of a run that learned several: then observations and actions are the task's
            own. None is for the spaces that all tasks share.
        sample: Whether actions are sampled, by random numbers that are inputs of the file, instead of the best ones.
        trust: As for ``rollmill.load``.

    Raises:
        ExportError: The network cannot be exported, the file does not act as the agent does, or its ending is that of
            another format; or the file cannot be written.
        MissingExtra: A package that the format needs is not installed.
        NoRunError: There is no such run or checkpoint; see ``rollmill.load`` for the other errors of reading one.
    """
    kind = _known_format(format, output, sample)
    agent = load(run_dir, checkpoint, trust=trust, policy=policy, task=task)
    tasks = agent.snapshot.env.tasks
    path = _path_of(folder_of_policy(run_dir, policy), kind, task, tasks) if output is None else Path(output)
    return export_agent(agent, path, kind, sample=sample, policy=policy, task=task)


def export_agent(
    agent: Agent,
    path: Path,
    format: Format,
    *,
    sample: bool = False,
    policy: str | None = None,
    task: str | None = None,
    observations: int = OBSERVATIONS,
) -> ExportResult:
    """Export an agent; see :func:`export`.

    Args:
        agent: On the CPU; its recurrent state is reset.
        path: The file.
        format: The format.
        sample: Whether actions are sampled.
        policy: For the metadata.
        task: For the metadata.
        observations: How many are compared.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        graph = AgentGraph(agent, sample=sample)
        metadata = _metadata(agent, graph, policy, task)
        content, run = _made(graph, format, metadata)
        compared = None if run is None else compare(agent, graph, run, observations=observations)
    finally:
        torch.set_num_threads(threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, path.parent / f".writing-{path.name}-{os.getpid()}")
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({error.strerror or error}): give another place (--output FILE, output=)"
        ) from error
    return ExportResult(
        path=path,
        format=format,
        metadata=metadata,
        num_bytes=len(content),
        inputs=graph.inputs,
        outputs=graph.outputs,
        comparison=compared,
    )


def _made(graph: AgentGraph, format: Format, metadata: Mapping[str, Any]) -> tuple[bytes, Run | None]:
    """Return the content of a file, and what runs it."""
    if format == "onnx":
        content = to_onnx(graph, metadata)
        return content, run_onnx(content)
    if format == "torch":
        content = to_torch(graph, metadata)
        return content, run_torch(content)
    content = to_safetensors(graph, metadata)
    return content, run_module(_with_weights(graph, read_safetensors(content)))


def _with_weights(graph: AgentGraph, weights: Mapping[str, torch.Tensor]) -> AgentGraph:
    """Return a copy of the graph that has all of its weights from a file."""
    other = copy.deepcopy(graph)
    with torch.no_grad():
        for value in other.algorithm.state_dict().values():
            if value.is_floating_point():
                value.fill_(torch.nan)
    other.algorithm.load_state_dict(weights, strict=not graph.lacks_critic)
    return other


def _metadata(agent: Agent, graph: AgentGraph, policy: str | None, task: str | None) -> dict[str, Any]:
    snapshot = agent.snapshot
    return {
        "format": _FORMAT,
        "rollmill": rollmill.__version__,
        "environment": snapshot.env.name,
        "policy": policy,
        "task": task,
        "algorithm": snapshot.algorithm.algorithm,
        "checkpoint": snapshot.checkpoint.name,
        "agent_steps": snapshot.agent_steps,
        "samples": graph.samples,
        "spaces": encode_spaces(agent.observation_space, agent.action_space, has_action_mask=agent.needs_mask),
        "inputs": [port.to_json() for port in graph.inputs],
        "outputs": [port.to_json() for port in graph.outputs],
        "settings": {**to_json(snapshot.model), **to_json(snapshot.algorithm)},
    }


def _known_format(format: str | None, output: Path | str | None, sample: bool) -> Format:
    ending = "" if output is None else Path(output).suffix
    of_ending = next((name for name, suffix in FORMATS.items() if suffix == ending), None)
    if ending and of_ending is None and format is None:
        raise ExportError(
            f"{output} ends like a file of no known format: end the name with {', '.join(FORMATS.values())}, or give "
            "the format"
        )
    format = format or of_ending or "onnx"
    if format not in FORMATS:
        raise ExportError(f"format {format!r} was given; choose one of {', '.join(FORMATS)}")
    if of_ending not in (None, format):
        raise ExportError(
            f"the format is {format}, but {output} ends like a file of the format {of_ending}: omit the format, or end "
            f"the name with {FORMATS[cast('Format', format)]}"
        )
    if format == "safetensors" and sample:
        raise ExportError("sample is on, but safetensors holds weights, not how to act: choose onnx or torch")
    return cast("Format", format)


def _path_of(folder: Path, format: Format, task: str | None, tasks: Sequence[str]) -> Path:
    last = "" if task is None else task.rpartition("/")[2]
    is_one = [name.rpartition("/")[2] for name in tasks].count(last) < 2
    of_task = "" if task is None else f"-{last if is_one else task.replace('/', '_')}"
    return folder / f"agent{of_task}{FORMATS[format]}"


def _listed(title: str, ports: Sequence[Port]) -> list[str]:
    return [f"  {title if not index else '':<9}{port.describe()}" for index, port in enumerate(ports)]

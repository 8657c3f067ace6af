"""The files: how they are written, and how they are read and run.

Every format holds the same JSON, under :data:`METADATA`. ONNX files and safetensors are data. An ``.pt2`` file is read
by ``torch.export.load``, which may execute code of a file that somebody else has made; here it reads only what this
process has written.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.envs.errors import MissingExtra
from rollmill.exporting.errors import ExportError
from rollmill.exporting.graph import AgentGraph
from rollmill.exporting.ports import Port
from rollmill.extras import install_command
from rollmill.models.actor_critic import is_of_critic

Format = Literal["onnx", "torch", "safetensors"]
FORMATS: Final[Mapping[str, str]] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
"""Name -> ending of the file."""

METADATA: Final = "rollmill"
"""Key of the JSON in a file's metadata; in ``.pt2`` the extra file ``rollmill.json``."""

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""From inputs by name to outputs by name, ``[N, ...]``."""

_EXTRA_FILE = f"{METADATA}.json"
_TRACED_ROWS = 3  # neither 0 nor 1, which torch.export takes for special


def to_onnx(graph: AgentGraph, metadata: Mapping[str, Any]) -> bytes:
    """Return the agent as an ONNX model.

    Raises:
        MissingExtra: onnx or onnxscript is not installed.
        ExportError: The network cannot be traced, or has an operation that ONNX lacks.
    """
    try:
        import onnx  # noqa: F401 - torch.onnx imports both late, and words the error otherwise
        import onnxscript  # noqa: F401 - as onnx
    except ImportError as error:
        raise MissingExtra(f"ONNX needs packages that are missing ({error}): {install_command('export')}") from error
    program = _traced(graph)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                input_names=[port.name for port in graph.inputs],
                output_names=[port.name for port in graph.outputs],
                dynamo=True,
                verbose=False,
            )
        assert made is not None
        for node in made.model.graph:  # notes of the exporter on each operation, larger than small networks
            node.metadata_props.clear()
            node.doc_string = None
        _rename_inner(made.model.graph, {port.name for port in (*graph.inputs, *graph.outputs)})
        made.model.metadata_props[METADATA] = json.dumps(metadata)
        return bytes(made.model_proto.SerializeToString())
    except Exception as error:
        raise ExportError(
            f"{_network(graph)} has an operation that torch.onnx does not translate ({_first_line(error)}): use "
            "--format torch, or another operation"
        ) from error


def _rename_inner(graph: Any, taken: Set[str]) -> None:
    """Rename values inside of a graph that have the name of an input or output, such as ``linear``.

    The exporter renames inputs and outputs only, without looking at the other values.
    """
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    inner = [*graph.initializers.values(), *(value for node in graph.all_nodes() for value in node.outputs)]
    used = {value.name for value in inner} | taken
    for value in inner:
        if value.name in taken and id(value) not in ends:
            number = next(number for number in itertools.count() if f"{value.name}.{number}" not in used)
            value.name = f"{value.name}.{number}"
            used.add(value.name)


def to_torch(graph: AgentGraph, metadata: Mapping[str, Any]) -> bytes:
    """Return the agent as an ``ExportedProgram`` in the format ``.pt2``.

    Raises:
        ExportError: The network cannot be traced.
    """
    program, buffer = _traced(graph), io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files={_EXTRA_FILE: json.dumps(metadata)})
    return buffer.getvalue()


def to_safetensors(graph: AgentGraph, metadata: Mapping[str, Any]) -> bytes:
    """Return the weights of :func:`weights_of` as a file.

    Raises:
        MissingExtra: safetensors is not installed.
    """
    save = _safetensors().save
    return bytes(save(weights_of(graph), metadata={METADATA: json.dumps(metadata)}))


def weights_of(graph: AgentGraph) -> dict[str, Tensor]:
    """Return the trained weights, each in memory of its own, with their names in the algorithm's ``state_dict``.

    A critic that judges by what all agents observe is not among them: an agent does not see what it needs.
    """
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in graph.algorithm.state_dict().items()
        if not (graph.lacks_critic and is_of_critic(name))
    }


def run_onnx(content: bytes) -> Run | None:
    """Return what runs an ONNX file; None where onnxruntime is not installed.

    Raises:
        ExportError: It is not a model that onnxruntime reads.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its classes derive from Exception alone.
        raise ExportError(f"onnxruntime does not read the file that was written ({_first_line(error)})") from error
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def run_torch(content: bytes) -> Run:
    """Return what runs an ``.pt2`` file that this process has written."""
    with _quiet():
        return run_module(torch.export.load(io.BytesIO(content)).module())


def run_module(module: nn.Module) -> Run:
    """Return what runs a module from inputs by name to outputs by name."""

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            found: Mapping[str, Tensor] = module({name: torch.tensor(array) for name, array in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    return run


def read_safetensors(content: bytes) -> dict[str, Tensor]:
    """Return the weights in a file."""
    return dict(_safetensors().load(content))


def read_metadata(content: bytes, kind: Format) -> dict[str, Any]:
    """Return the JSON in a file, without loading its network.

    Raises:
        MissingExtra: onnx is not installed, for an ONNX file.
        ExportError: There is none.
    """
    try:
        if kind == "onnx":
            import onnx

            text = {item.key: item.value for item in onnx.load_from_string(content).metadata_props}[METADATA]
        elif kind == "torch":
            import zipfile

            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith(f"/{_EXTRA_FILE}")]
                text = archive.read(name).decode()
        else:
            size = int.from_bytes(content[:8], "little")
            text = json.loads(content[8 : 8 + size])["__metadata__"][METADATA]
        return dict(json.loads(text))
    except ImportError as error:
        raise MissingExtra(f"ONNX needs packages that are missing ({error}): {install_command('export')}") from error
    except Exception as error:
        raise ExportError(f"this is not a file of `rollmill export --format {kind}` ({error!r})") from error


def example_inputs(ports: Sequence[Port], rows: int) -> dict[str, Tensor]:
    """Return zeros of the shapes and dtypes of inputs."""
    return {port.name: torch.from_numpy(np.zeros((rows, *port.shape), port.dtype)) for port in ports}


def _traced(graph: AgentGraph) -> torch.export.ExportedProgram:
    """Trace a graph for any number of rows.

    Raises:
        ExportError: ``torch.export`` cannot.
    """
    example = example_inputs(graph.inputs, _TRACED_ROWS)
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                graph, (example,), dynamic_shapes=({name: {0: batch} for name in example},), strict=False
            )
    except Exception as error:
        raise ExportError(
            f"{_network(graph)} cannot be traced by torch.export ({_first_line(error)}): its forward must be tensor "
            "operations alone, the same for every input and every number of rows (x.shape[0] instead of len(x)); "
            "--format safetensors exports its weights without it"
        ) from error
    for node in program.graph.nodes:  # Where it stands in the source code, with the paths of this machine.
        node.meta.pop("stack_trace", None)
    return program


def _network(graph: AgentGraph) -> str:
    """Name the network for messages: the user's encoder or model, where it is one."""
    network = graph.algorithm.acting
    encoder = getattr(network, "encoder", None)
    kinds = [type(part) for part in (encoder, network, graph.algorithm) if part is not None]
    users = [kind for kind in kinds if kind.__module__.split(".")[0] != "rollmill"]
    return f"the network ({(users or kinds[1:])[0].__name__})"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of torch's own exporters, about deprecations and packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtra(f"safetensors is not installed ({error}): {install_command('export')}") from error
    return safetensors.torch

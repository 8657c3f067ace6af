"""The checkpoint file: an ordinary PyTorch file that can be told to be whole, and ours, before it is believed.

``torch.load(path, weights_only=True)`` reads it; its ZIP comment is ``rollmill <SHA-256> <header>``, the header being
JSON with the format version, agent steps and metric, the SHA-256 that of everything before the comment and of the
header. So a file that was cut off, damaged or written by something else is recognised before a byte is unpickled.

Importing this module imports no torch: its functions do.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

FORMAT = 1
_MAGIC = b"rollmill "
# ZIP's end-of-central-directory record: its signature, and its size without the comment that follows it.
_ZIP_END, _ZIP_END_SIZE = b"PK\x05\x06", 22


MetricName = Literal["training_return", "evaluation_return"]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be read."""


class CheckpointHeader(NamedTuple):
    """What a checkpoint says of itself without being unpickled.

    Attributes:
        format: Version of the file format.
        agent_steps: Agent steps that the learner had consumed.
        metric: The metric that "best" goes by, where one was known.
        metric_name: What it is: "evaluation_return", the mean return of an evaluation, or "training_return", that of
            the last 100 training episodes; None where no metric was known.
        metric_of: What was measured, in words, where numbers of the same name may mean different things; else None.
    """

    format: int
    agent_steps: int
    metric: float | None
    metric_name: MetricName | None = None
    metric_of: str | None = None


def load_checkpoint(path: Path | str, map_location: Any = "cpu") -> dict[str, Any]:
    """Loads the state from one file, after checking that the file is whole and ours.

    Args:
        path: The file.
        map_location: Device to load tensors to, as for ``torch.load``.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It cannot be read, is torn, damaged, of a newer format, or not a Rollmill checkpoint.
    """
    return read_checkpoint(path, map_location)[1]


def read_header(path: Path | str) -> CheckpointHeader:
    """Reads what a checkpoint says of itself, without checking its content; costs one small read, and no torch.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It cannot be read, is cut off, of a newer format, or not a Rollmill checkpoint.
    """
    with _reading(path) as file:
        return _parse_header(file, path).header


@contextlib.contextmanager
def _reading(path: Path | str) -> Iterator[BinaryIO]:
    """The opened file; what the disk refuses is a ``CheckpointError``, that there is no file is not."""
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_checkpoint(path: Path | str, map_location: Any) -> tuple[CheckpointHeader, dict[str, Any]]:
    """Loads header and state from one file; raises as ``load_checkpoint`` does."""
    import torch

    with _reading(path) as file:
        header = _verify(file, path)
        file.seek(0)
        try:
            state: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"{path} holds more than data and was not loaded: {error}") from error
    return header, state


def verify_checkpoint(path: Path | str) -> CheckpointHeader:
    """Reads what a checkpoint says of itself, after checking that the file is whole; reads it all, but needs no torch.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It cannot be read, is torn, damaged, of a newer format, or not a Rollmill checkpoint.
    """
    with _reading(path) as file:
        return _verify(file, path)


def _verify(file: BinaryIO, path: Path | str) -> CheckpointHeader:
    """The header, once the checksum agrees with the content."""
    parsed = _parse_header(file, path)
    file.seek(0)
    digest, unread = hashlib.sha256(), parsed.num_bytes
    while unread > 0 and (chunk := file.read(min(unread, 1 << 20))):
        digest.update(chunk)
        unread -= len(chunk)
    digest.update(parsed.header_bytes)
    if digest.hexdigest().encode() != parsed.sha256:
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    return parsed.header


def encode_checkpoint(
    state: Mapping[str, Any],
    agent_steps: int,
    metric: float | None,
    metric_name: MetricName = "training_return",
    metric_of: str | None = None,
) -> memoryview:
    """Returns the bytes of a checkpoint file.

    Args:
        state: Tensors (of any device), numbers, strings, booleans and None, in dicts, lists and tuples.
        agent_steps: For the header.
        metric: For the header.
        metric_name: For the header: what the metric is.
        metric_of: For the header, likewise.

    Raises:
        CheckpointError: The state holds something else, which ``weights_only=True`` would not load.
    """
    import torch

    # Written in place: each copy of a large network would take as long as the checksum.
    buffer = io.BytesIO()
    torch.save(_portable(dict(state), "state"), buffer)
    buffer.seek(-_ZIP_END_SIZE, os.SEEK_END)
    assert buffer.read(len(_ZIP_END)) == _ZIP_END, "torch.save wrote no ZIP file without a comment"
    fields: dict[str, object] = {"format": FORMAT, "agent_steps": agent_steps, "metric": metric}
    if metric is not None:
        fields["metric_name"] = metric_name
    if metric_of is not None:
        fields["metric_of"] = metric_of
    header = json.dumps(fields).encode()
    # The last two bytes of the content are the comment's length, which is about to change.
    with buffer.getbuffer() as content, content[:-2] as checked:
        digest = hashlib.sha256(checked)
    digest.update(header)
    comment = _MAGIC + digest.hexdigest().encode() + b" " + header
    buffer.seek(-2, os.SEEK_END)
    buffer.write(len(comment).to_bytes(2, "little") + comment)
    return buffer.getbuffer()


class _Parsed(NamedTuple):
    """The header, its bytes, and the checksum of the first ``num_bytes`` bytes of the file followed by the header's."""

    header: CheckpointHeader
    header_bytes: bytes
    sha256: bytes
    num_bytes: int


def _parse_header(file: BinaryIO, path: Path | str) -> _Parsed:
    """Finds the header at the end of the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        raise CheckpointError(f"{path} is empty" if size == 0 else f"{path} is not a PyTorch file")
    file.seek(max(0, size - 4096))
    tail = file.read()
    end = tail.rfind(_ZIP_END)
    comment = tail[end + _ZIP_END_SIZE :]
    if end < 0 or len(tail) < end + _ZIP_END_SIZE or tail[end + 20 : end + 22] != len(comment).to_bytes(2, "little"):
        raise CheckpointError(f"{path} is cut off: the end of the file is missing")
    if not comment.startswith(_MAGIC):
        raise CheckpointError(f"{path} is a PyTorch file that Rollmill did not write")
    digest, _, header = comment[len(_MAGIC) :].partition(b" ")
    try:
        fields = json.loads(header)
        version = int(fields["format"])
        if version > FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {version}, this Rollmill reads up to {FORMAT}: use a newer Rollmill"
            )
        metric = fields["metric"]
        # Earlier versions knew one metric only, and do not say which.
        name = None if metric is None else fields.get("metric_name", "training_return")
        parsed = CheckpointHeader(version, int(fields["agent_steps"]), metric, name, fields.get("metric_of"))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: its header cannot be read ({error!r})") from error
    return _Parsed(parsed, header, digest, size - len(comment) - 2)


def _portable(value: Any, where: str) -> Any:
    """A copy of ``value`` that ``weights_only=True`` loads, with its tensors on the CPU.

    Types are compared exactly: a ``numpy.float64`` is a float, yet pickles as something that is refused.
    """
    import torch

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # torch.save writes the whole storage of a view, which may be an arena in shared memory.
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if type(value) in (dict, OrderedDict):
        for key in value:
            if type(key) not in (str, int):
                raise CheckpointError(f"{where} has the key {key!r}: keys are strings or integers; convert it")
        return {key: _portable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_portable(item, f"{where}[{i}]") for i, item in enumerate(value))
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds tensors, numbers, "
        f"strings, booleans and None, in dicts, lists and tuples; convert it (arrays with torch.from_numpy, NumPy "
        f"scalars with .item())"
    )

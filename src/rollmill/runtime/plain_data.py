"""Plain data as bytes, for messages over a network: decoding executes no code.

A message is the length of its text (8 bytes, little-endian), a JSON text, and the arrays that the text refers to, one
after the other. The text says for each value what it is::

    None, bool, int, float, str         as JSON has them (NaN and infinity as Python's json writes them)
    {"list": [...]}, {"tuple": [...]}   their items
    {"dict": [[key, value], ...]}       in their order; of an OrderedDict, too
    {"bytes": length}                   the bytes follow in the order of the text
    {"array": dtype, "shape": [...]}    likewise, in C order; a tensor has "tensor" instead, and PyTorch's dtype

Types are compared exactly: a subclass, such as a NamedTuple, is for the caller to take apart and to build again.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")
_SCALARS = (type(None), bool, int, float, str)
_ARRAY_KINDS = "biufc"
# Of PyTorch's dtypes, with the NumPy dtype that their bytes are read by.
_TENSORS = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "bfloat16": "uint16",
    "float32": "float32",
    "float64": "float64",
}


class MalformedMessageError(ValueError):
    """The bytes were not written by :func:`encode`."""


def encode(item: object) -> bytes:
    """The bytes of an item.

    Args:
        item: None, numbers, strings, bytes, arrays of numbers and tensors, and lists, tuples and dicts of those.

    Raises:
        TypeError: It holds something else; the message says what.
    """
    parts: list[bytes] = []
    text = json.dumps(_described(item, parts)).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *parts))


def decode(message: bytes | memoryview) -> Any:
    """Decodes what :func:`encode` wrote; arrays and tensors are writable copies.

    Raises:
        MalformedMessageError: The bytes are no such message, or are not whole.
    """
    view = memoryview(message)
    try:
        (length,) = _LENGTH.unpack_from(view)
        description = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]).decode())
        rest = _Rest(view[_LENGTH.size + length :])
        item = _built(description, rest)
        rest.check_end()
    except MalformedMessageError:
        raise
    except (struct.error, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise MalformedMessageError(f"a message of {len(view)} bytes is no plain data: {error}") from error
    return item


def _described(item: object, parts: list[bytes]) -> object:
    kind = type(item)
    if kind in _SCALARS:
        return item
    if isinstance(item, list | tuple) and kind in (list, tuple):
        return {kind.__name__: [_described(each, parts) for each in item]}
    if isinstance(item, dict) and kind in (dict, OrderedDict):
        return {"dict": [[_described(key, parts), _described(value, parts)] for key, value in item.items()]}
    if isinstance(item, bytes):
        parts.append(item)
        return {"bytes": len(item)}
    if isinstance(item, np.ndarray) and item.dtype.kind in _ARRAY_KINDS:
        parts.append(item.astype(item.dtype.newbyteorder("<"), copy=False).tobytes())
        return {"array": item.dtype.name, "shape": list(item.shape)}
    if (tensor := _described_tensor(item, parts)) is not None:
        return tensor
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} is no plain data: give numbers, strings, bytes, arrays of numbers or "
        "tensors, in lists, tuples and dicts"
    )


def _described_tensor(item: Any, parts: list[bytes]) -> dict[str, object] | None:
    # Imported here because rollout workers, which have no tensors, must not import PyTorch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(item, torch.Tensor):
        return None
    name = str(item.dtype).removeprefix("torch.")
    if name not in _TENSORS or item.layout != torch.strided:
        return None
    dense = item.detach().cpu().contiguous()
    if name == "bfloat16":
        dense = dense.view(torch.uint16)
    parts.append(dense.numpy().tobytes())
    return {"tensor": name, "shape": list(item.shape)}


def _built(description: Any, rest: _Rest) -> Any:
    if type(description) in _SCALARS:
        return description
    if "list" in description:
        return [_built(each, rest) for each in description["list"]]
    if "tuple" in description:
        return tuple(_built(each, rest) for each in description["tuple"])
    if "dict" in description:
        return {_built(key, rest): _built(value, rest) for key, value in description["dict"]}
    if "bytes" in description:
        return bytes(rest.take(description["bytes"]))
    if "array" in description:
        dtype = np.dtype(description["array"])
        if dtype.kind not in _ARRAY_KINDS:
            raise MalformedMessageError(f"an array of {dtype} is no plain data: allowed are numbers")
        return rest.take_array(dtype, description["shape"])
    if "tensor" in description:
        import torch

        name = description["tensor"]
        tensor = torch.from_numpy(rest.take_array(np.dtype(_TENSORS[name]), description["shape"]))
        return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor
    raise MalformedMessageError(f"a value of unknown kind: {sorted(description)}")


class _Rest:
    """The bytes after a message's text, read in order."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def take(self, length: int) -> memoryview:
        if not 0 <= length <= len(self._view):
            raise MalformedMessageError(f"a message ends {length - len(self._view)} bytes too early")
        taken, self._view = self._view[:length], self._view[length:]
        return taken

    def take_array(self, dtype: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise MalformedMessageError(f"an array's shape is {shape}: allowed are whole numbers from 0")
        part = self.take(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(part, dtype.newbyteorder("<")).reshape(shape).astype(dtype)

    def check_end(self) -> None:
        if len(self._view):
            raise MalformedMessageError(f"a message has {len(self._view)} bytes more than it describes")

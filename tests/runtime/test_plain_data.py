"""Plain data as bytes: it comes back as it was, and nothing else is written or read."""

from __future__ import annotations

import json
import math
import pickle
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rollmill.runtime.plain_data import MalformedMessageError, decode, encode


@pytest.mark.parametrize(
    "item",
    [
        None,
        True,
        2**80,
        -0.1,
        math.inf,
        "é\0\n",
        b"\x00\xff",
        [],
        (1, [2, ("x",)], {"a": None}),
        {0: {"step": 1.5}, "array": 1, ("a", 2): b""},
    ],
)
def test_what_is_plain_comes_back_as_it_was(item: object) -> None:
    found = decode(encode(item))
    assert found == item
    assert type(found) is type(item)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_arrays_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = decode(encode([array, "between", array.T]))
    for one, other in ((found[0], array), (found[2], array.T)):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
        assert one.flags.writeable


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    tensor = torch.randn(2, 3, 4, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    for each in (tensor, tensor[0, 0, 0, 0], tensor[:0]):
        found = decode(encode({"x": each}))["x"]
        assert found.dtype == dtype
        assert torch.equal(found, each)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_tensors_of_wide_unsigned_integers_come_back_as_they_were(dtype: str) -> None:
    array = np.array([[0, 1], [2, np.iinfo(dtype).max]], dtype)
    found = decode(encode(torch.from_numpy(array)))
    assert found.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(found.numpy(), array)


class Pair(NamedTuple):
    one: int
    other: int


@pytest.mark.parametrize(
    "item",
    [
        Pair(1, 2),
        {1, 2},
        object(),
        np.float64(1.0),
        np.array(["a"]),
        np.array([None]),
        print,
        np.zeros(2, "datetime64[s]"),
    ],
)
def test_what_is_not_plain_is_refused_by_name(item: object) -> None:
    with pytest.raises(TypeError, match=f"{type(item).__name__} is no plain data"):
        encode([item])


def message(description: object, rest: bytes = b"") -> bytes:
    text = json.dumps(description).encode()
    return struct.pack("<Q", len(text)) + text + rest


class Harmful:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pickle.dumps(Harmful()),
        b"\xff" * 64,
        encode([1, np.zeros(3)])[:-1],
        encode([1, np.zeros(3)]) + b"x",
        message({"array": "object", "shape": [1]}, bytes(8)),
        message({"array": "float64", "shape": [-1]}, bytes(8)),
        message({"array": "float64", "shape": [2**62, 2**62]}),
        message({"array": "float64", "shape": [0, 2**80]}),
        message({"bytes": -1}),
        message({"tensor": "complex64", "shape": [1]}, bytes(8)),
        message({"class": "os.system"}),
        message([1]),
        message({"dict": [[{"list": []}, 1]]}),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode(data)

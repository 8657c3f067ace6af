"""Row, trajectory and image copies against NumPy, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.native import gather, gather_images, gather_trajectories


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "bool", "float16", "float32", "int64"]),
    shape=st.sampled_from([(), (1,), (3,), (4, 5), (2, 0)]),
    rows=st.integers(1, 9),
    seed=st.integers(0, 100),
)
def test_gather_is_fancy_indexing(dtype: str, shape: tuple[int, ...], rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    src = random.integers(0, 2, (rows, *shape)).astype(dtype)
    index = random.integers(0, rows, random.integers(0, 20))
    dst = np.zeros((len(index), *shape), dtype)
    gather(dst, src, index)
    np.testing.assert_array_equal(dst, src[index])


def test_a_copy_large_enough_to_run_without_the_gil_is_the_same() -> None:
    random = np.random.default_rng(0)
    src = random.integers(0, 255, (64, 84 * 84 * 4), dtype=np.uint8)
    index = random.integers(0, 64, 100)
    dst = np.empty((100, 84 * 84 * 4), np.uint8)
    gather(dst, src, index)
    np.testing.assert_array_equal(dst, src[index])


def test_gather_reinterprets_rows_of_equal_bytes() -> None:
    src = np.arange(6, dtype=np.float32).reshape(3, 2)
    dst = np.zeros((1, 8), np.uint8)
    gather(dst, src, np.array([2]))
    assert dst.view(np.float32).tolist() == [[4.0, 5.0]]


def test_gather_trajectories_is_a_loop_over_segments() -> None:
    random = np.random.default_rng(1)
    src = random.normal(size=(4, 6, 5, 3)).astype(np.float32)
    segments = np.array([[3, 1, 4, 0], [0, 0, 1, 4], [1, 2, 0, 7], [2, 3, 2, 5]])
    for steps in (0, 1, 5):
        dst = np.full((5, 7, 3), np.nan, np.float32)
        expected = dst.copy()
        for slot, row, count, column in segments:
            for t in range(steps):
                expected[t, column : column + count] = src[slot, t, row : row + count]
        gather_trajectories(dst, src, segments, steps)
        np.testing.assert_array_equal(dst, expected)


def test_gather_trajectories_of_scalars() -> None:
    src = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    dst = np.zeros((3, 2), np.int64)
    gather_trajectories(dst, src, np.array([[1, 1, 2, 0]]), 3)
    np.testing.assert_array_equal(dst, src[1, :, 1:3])


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 72, 128), (1, 5, 7), (2, 9, 3), (5, 4, 4)])
def test_gather_images_is_what_torch_computes(shape: tuple[int, int, int], channels_first: bool) -> None:
    channels, height, width = shape
    random = np.random.default_rng(2)
    stored = shape if channels_first else (height, width, channels)
    src = random.integers(0, 256, (6, *stored), dtype=np.uint8)
    index = np.array([5, 0, 5, 3])
    scale = 1 / 255
    chosen = torch.from_numpy(src[index])
    if not channels_first:
        chosen = chosen.permute(0, 3, 1, 2)
    expected = (chosen.to(torch.float32) * float(np.float32(scale))).contiguous(memory_format=torch.channels_last)

    floats = np.empty((4, height, width, channels), np.float32)
    gather_images(floats, src, index, channels_first=channels_first, scale=scale)
    assert torch.equal(torch.from_numpy(floats).permute(0, 3, 1, 2), expected)

    bits = np.empty((4, height, width, channels), np.uint16)
    gather_images(bits, src, index, channels_first=channels_first, scale=scale)
    halves = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).permute(0, 3, 1, 2)
    assert torch.equal(halves, expected.to(torch.bfloat16))


def test_gather_refuses_what_does_not_match() -> None:
    square = np.zeros((3, 3), np.float32)
    index = np.array([0, 1, 2])
    for bad in (-1, 3):
        with pytest.raises(IndexError, match=rf"index\[1\] is {bad}; .* has rows 0 to 2"):
            gather(square, square.copy(), np.array([0, bad, 2]))
    with pytest.raises(ValueError, match="12 bytes and a row of src 24"):
        gather(square, np.zeros((3, 3)), index)
    with pytest.raises(ValueError, match="3 rows and index 2"):
        gather(square, square.copy(), index[:2])
    with pytest.raises(ValueError, match="at least one axis"):
        gather(np.zeros(()), np.zeros(()), index)
    with pytest.raises(TypeError, match="C-contiguous"):
        gather(square.T[:, :2], square[:, :2], index)
    with pytest.raises(TypeError, match="index must be a one-dimensional int64"):
        gather(square, square.copy(), index.astype(np.int32))
    read_only = square.copy()
    read_only.flags.writeable = False
    with pytest.raises(TypeError, match="dst must be a C-contiguous writable"):
        gather(read_only, square, index)


def test_gather_trajectories_refuses_what_does_not_match() -> None:
    src = np.zeros((2, 3, 4), np.float32)
    dst = np.zeros((3, 5), np.float32)
    good = np.array([[0, 0, 4, 0]])
    huge = 2**62
    for bad in ([2, 0, 1, 0], [-1, 0, 1, 0], [0, 1, 4, 0], [0, -1, 1, 0], [0, 0, 4, 2], [0, 0, 1, -1], [0, 0, -1, 0],
                [0, huge, huge, 0], [0, 0, huge, huge]):  # fmt: skip
        with pytest.raises(IndexError, match=r"segments\[1\] is"):
            gather_trajectories(dst, src, np.array([good[0], bad]), 3)
    for steps in (-1, 4):
        with pytest.raises(ValueError, match=f"steps is {steps}"):
            gather_trajectories(dst, src, good, steps)
    with pytest.raises(ValueError, match="8 bytes and a row of src 4"):
        gather_trajectories(np.zeros((3, 5)), src, good, 3)
    with pytest.raises(ValueError, match="axes"):
        gather_trajectories(dst[0], src, good, 3)
    with pytest.raises(TypeError, match=r"\[S, 4\]"):
        gather_trajectories(dst, src, np.zeros((1, 3), np.int64), 3)


def test_gather_images_refuses_what_does_not_match() -> None:
    src = np.zeros((2, 4, 6, 5), np.uint8)
    dst = np.zeros((1, 6, 5, 4), np.float32)
    index = np.array([1])
    with pytest.raises(ValueError, match="channels_first is False"):
        gather_images(dst, src, index, channels_first=False, scale=1.0)
    with pytest.raises(TypeError, match="src must be uint8"):
        gather_images(dst, src.astype(np.int8), index, channels_first=True, scale=1.0)
    with pytest.raises(TypeError, match="dst must be float32"):
        gather_images(dst.astype(np.float64), src, index, channels_first=True, scale=1.0)
    with pytest.raises(ValueError, match="axes"):
        gather_images(dst[0], src, index, channels_first=True, scale=1.0)
    with pytest.raises(ValueError, match="1 rows and index 2"):
        gather_images(dst, src, np.array([0, 1]), channels_first=True, scale=1.0)
    with pytest.raises(IndexError, match="rows 0 to 1"):
        gather_images(dst, src, np.array([2]), channels_first=True, scale=1.0)

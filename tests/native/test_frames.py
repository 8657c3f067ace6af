"""Frames shrunk and stacked in native code; what it computes is tested in C++ and against ALE (tests/envs)."""

import numpy as np
import pytest

from rollmill.native import push_frames


def test_a_frame_is_pushed_onto_its_stack():
    stacks = np.zeros((2, 3, 1, 2), np.uint8)
    stacks[:] = np.array([10, 20, 30], np.uint8)[:, None, None]
    frames = np.array([[[1, 3, 0, 1], [2, 4, 0, 1]], [[0, 0, 9, 9], [0, 0, 9, 9]]], np.uint8)
    push_frames(stacks, frames, np.array([False, True]))
    # Means of 2.5 and 0.5 are rounded upwards.
    np.testing.assert_array_equal(stacks[0].reshape(3, 2), [[20, 20], [30, 30], [3, 1]])
    np.testing.assert_array_equal(stacks[1].reshape(3, 2), [[0, 0], [0, 0], [0, 9]])


def _arguments(**changes):
    arguments = {
        "stacks": np.zeros((2, 4, 8, 8), np.uint8),
        "frames": np.zeros((2, 21, 16), np.uint8),
        "fresh": np.zeros(2, bool),
    }
    return {**arguments, **changes}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"stacks": np.zeros((2, 4, 8, 8), np.float32)},
            TypeError,
            r"must be uint8 \('B'\); their formats are 'f' and 'B'",
        ),
        ({"frames": np.zeros((2, 21, 32), np.uint8)[:, :, ::2]}, TypeError, "frames must be a C-contiguous array"),
        ({"fresh": np.zeros(2, np.uint8)}, TypeError, r"fresh must be bool \('\?'\) with one axis; it is 'B' with 1"),
        ({"frames": np.zeros((2, 1, 21, 16), np.uint8)}, ValueError, r"frames \[N, H, W\]; they have 4 and 4 axes"),
        ({"fresh": np.zeros(3, bool)}, ValueError, "2, 2 and 3 rows"),
        ({"stacks": np.zeros((2, 4, 8, 17), np.uint8)}, ValueError, "21 x 16 pixels cannot be shrunk to 8 x 17"),
        ({"stacks": np.zeros((2, 0, 8, 8), np.uint8)}, ValueError, "in stacks of 0"),
        ({"stacks": np.zeros((2, 4, 0, 8), np.uint8)}, ValueError, "to 0 x 8"),
        ({"frames": np.zeros((2, 256, 256), np.uint8)}, ValueError, "frames have 65536 pixels; at most 65535"),
    ],
)
def test_wrong_arrays_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        push_frames(**_arguments(**changes))


def test_no_rows_are_nothing_to_do():
    push_frames(np.zeros((0, 4, 8, 8), np.uint8), np.zeros((0, 21, 16), np.uint8), np.zeros(0, bool))

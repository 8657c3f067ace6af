"""What a replay's configuration says of sequences, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.storage.replay_config import ReplayConfig


@pytest.mark.parametrize(
    ("given", "window", "stride", "steps_per_sample"),
    [
        ({}, 0, 1, 1),
        ({"n_step": 5}, 0, 1, 1),
        ({"sequence_length": 80, "burn_in": 40, "n_step": 5}, 124, 40, 80),
        ({"sequence_length": 1}, 1, 1, 1),
        ({"sequence_length": 10, "sequence_stride": 10, "n_step": 2}, 11, 10, 10),
    ],
)
def test_a_window_is_what_is_burned_in_learned_and_added_up(
    given: dict[str, Any], window: int, stride: int, steps_per_sample: int
) -> None:
    config = ReplayConfig(**given)
    assert (config.window, config.stride, config.steps_per_sample) == (window, stride, steps_per_sample)
    assert config.has_sequences == ("sequence_length" in given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequence_length": -1}, "replay.sequence_length=-1: give an integer of at least 0"),
        ({"sequence_length": 2.0}, "replay.sequence_length=2.0: give an integer of at least 0"),
        ({"burn_in": True, "sequence_length": 2}, "replay.burn_in=True: give an integer of at least 0"),
        ({"burn_in": 3}, "replay.burn_in=3, replay.sequence_stride='auto' with sequence_length=0: single transitions"),
        ({"sequence_stride": 3}, "replay.burn_in=0, replay.sequence_stride=3 with sequence_length=0"),
        (
            {"sequence_stride": 3, "sequence_length": 2},
            "replay.sequence_stride=3: give an integer of 1 to sequence_length=2",
        ),
        (
            {"sequence_stride": 0, "sequence_length": 2},
            "replay.sequence_stride=0: give an integer of at least 1",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayConfig(**given)

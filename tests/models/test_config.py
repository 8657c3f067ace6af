"""Invalid model configurations, and that importing the configuration does not import torch."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from rollmill.models.config import ModelConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"core": "rnn"}, "model.core='rnn': choose one of 'none', 'gru', 'lstm'"),
        ({"activation": "sin"}, "model.activation='sin': choose one of 'auto'"),
        ({"init": "zeros"}, "model.init='zeros': choose one of 'auto'"),
        ({"model": ""}, "model.model='': give a name"),
        ({"encoder": ""}, "model.encoder='': give a name"),
        ({"mlp_sizes": (64, 0)}, r"model.mlp_sizes=\(64, 0\): give widths of at least 1"),
        ({"head_sizes": (-1,)}, r"model.head_sizes=\(-1,\): give widths of at least 1"),
        ({"core_size": 0}, "model.core_size=0: give an integer of at least 1"),
        ({"dense_size": 0}, "model.dense_size=0: give an integer of at least 1, or None for the published"),
        ({"observation_clip": 0.0}, "model.observation_clip=0.0: give a finite number above 0"),
        ({"observation_clip": math.inf}, "model.observation_clip=inf"),
        ({"initial_log_std": math.nan}, "model.initial_log_std=nan: give a finite number"),
        ({"log_std_bounds": (1.0, 1.0)}, "give two numbers, the smaller one first"),
        ({"core": "gru", "shared": False}, "model.core is 'gru' with shared=False.*set shared=True or core='none'"),
        ({"normalise_images": True}, "model.normalise_images needs normalise_observations=True"),
    ],
)
def test_invalid_values_raise(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**values)


def test_needs_no_torch() -> None:
    code = (
        "import sys, rollmill.models.config, rollmill.losses; rollmill.models.config.ModelConfig(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

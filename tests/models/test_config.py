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
        ({"core": "rnn"}, "model.core is 'rnn'; allowed: 'none', 'gru', 'lstm'"),
        ({"activation": "sin"}, "model.activation is 'sin'; allowed: 'auto'"),
        ({"init": "zeros"}, "model.init is 'zeros'; allowed: 'auto'"),
        ({"model": ""}, "model.model is empty"),
        ({"encoder": ""}, "model.encoder is empty"),
        ({"mlp_sizes": (64, 0)}, r"model.mlp_sizes is \(64, 0\); every width must be at least 1"),
        ({"head_sizes": (-1,)}, r"model.head_sizes is \(-1,\); every width must be at least 1"),
        ({"core_size": 0}, "model.core_size is 0; it must be at least 1"),
        ({"dense_size": 0}, "model.dense_size is 0; give at least 1, or None"),
        ({"observation_clip": 0.0}, "model.observation_clip is 0.0; it must be finite and positive"),
        ({"observation_clip": math.inf}, "model.observation_clip is inf"),
        ({"initial_log_std": math.nan}, "model.initial_log_std is nan; it must be finite"),
        ({"log_std_bounds": (1.0, 1.0)}, "the first must be less than the second"),
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

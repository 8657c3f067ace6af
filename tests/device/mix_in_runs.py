"""For `--import` of a run that must fail: the fake GPU, and a learner that leaves a part of its batch on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from tests.device import gpu_in_runs  # noqa: F401  # gives this process the GPU

from rollmill.learning.minibatches import Minibatches


def _without_transfer(self: Minibatches, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


Minibatches._tensor = _without_transfer  # type: ignore[method-assign]

"""Fixtures: one torch thread, as in every process of a run, and random batches of any specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from rollmill.algorithms.batches import TransitionBatch
from rollmill.specs import ActionSpec, ArraySpec

torch.set_num_threads(1)

MakeBatch = Callable[..., TransitionBatch]


def observe(observation: Mapping[str, ArraySpec], rows: int, g: torch.Generator) -> dict[str, Tensor]:
    result = {}
    for name, spec in observation.items():
        if spec.dtype == "uint8":
            result[name] = torch.randint(0, 256, (rows, *spec.shape), generator=g).to(torch.uint8)
        else:
            result[name] = torch.randn(rows, *spec.shape, generator=g)
    return result


@pytest.fixture
def make_batch() -> MakeBatch:
    """``make_batch(observation, action, rows=..., seed=..., masked=...)``."""

    def make(
        observation: Mapping[str, ArraySpec], action: ActionSpec, rows: int = 8, seed: int = 0, masked: bool = False
    ) -> TransitionBatch:
        g = torch.Generator().manual_seed(seed)
        sizes = action.categorical_sizes
        discrete = [torch.randint(0, n, (rows,), generator=g) for n in sizes]
        masks = [torch.rand(rows, action.mask_size, generator=g) < 0.5 for _ in range(2)]
        return TransitionBatch(
            observation=observe(observation, rows, g),
            discrete=torch.stack(discrete, -1).to(torch.int32) if sizes else None,
            continuous=torch.rand(rows, action.num_continuous, generator=g) * 2 - 1 if action.num_continuous else None,
            reward=torch.randn(rows, generator=g),
            discount=0.97 * (torch.rand(rows, generator=g) > 0.3),
            next_observation=observe(observation, rows, g),
            action_mask=masks[0] if masked else None,
            next_action_mask=masks[1] if masked else None,
            weight=torch.rand(rows, generator=g) + 0.5,
        )

    return make

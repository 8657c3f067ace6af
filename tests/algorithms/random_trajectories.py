"""Random batches of trajectories, for several tests of on-policy algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.losses.gae import recursion_cut_numpy
from rollmill.losses.ppo import masked_sums
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(5,), dtype="float32")}
MIXED = ActionSpec(
    heads=(CategoricalHead(n=3), BoxHead(low=(-1.0,), high=(1.0,), shape=(1,))),
    structure="tuple",
    components=(("discrete", 1), ("box", 1)),
)


def random_arrays(steps: int, rows: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """What :meth:`OnPolicyAlgorithm.prepare` reads, with ends of episodes and masked rows behind them."""
    random = np.random.default_rng(seed)
    terminated = random.random((steps, rows)) < 0.2
    truncated = (random.random((steps, rows)) < 0.1) & ~terminated
    valid = np.ones((steps, rows), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    return {
        "reward": random.standard_normal((steps, rows)).astype(np.float32),
        "value": random.standard_normal((steps + 1, rows)).astype(np.float32),
        "log_prob": (random.standard_normal((steps, rows)) - 2.0).astype(np.float32),
        "policy_version": random.integers(0, 9, (steps, rows)),
        "terminated": terminated & valid,
        "truncated": truncated & valid,
        "valid": valid,
    }


def random_batch(steps: int, rows: int, seed: int = 0, *, state_size: int = 0, **changes: Any) -> OnPolicyBatch:
    """K trajectories of T steps, and T + 1 observations, with actions of ``MIXED``."""
    arrays = random_arrays(steps, rows, seed)
    random = np.random.default_rng(seed + 1)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    cut = recursion_cut_numpy(arrays["terminated"], arrays["truncated"], arrays["valid"])
    reset = np.zeros((steps + 1, rows), bool)
    reset[2:] = ~arrays["valid"][1:]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    return OnPolicyBatch(
        observation={"obs": normal(steps + 1, rows, 5)},
        discrete=torch.from_numpy(random.integers(0, 3, (steps, rows, 1)).astype(np.int32)),
        continuous=normal(steps, rows, 1),
        action_mask=None,
        log_prob=tensors["log_prob"],
        value=tensors["value"][:-1],
        reward=tensors["reward"],
        advantage=normal(steps, rows),
        return_=normal(steps, rows),
        keep=tensors["valid"],
        terminated=tensors["terminated"],
        cut=torch.from_numpy(cut),
        valid=tensors["valid"],
        reset=torch.from_numpy(reset),
        reset_steps=np.flatnonzero(reset.any(1)).tolist(),
        rnn_state=normal(rows, state_size) if state_size else None,
        divisor=float(arrays["valid"].sum()),
        moments=None,
        coefficients={},
    )._replace(**changes)


def flat(batch: OnPolicyBatch) -> OnPolicyBatch:
    """The steps that count as independent samples, as a network without a core gets them."""
    steps, keep = len(batch.keep), batch.keep
    assert batch.discrete is not None
    assert batch.continuous is not None
    assert batch.advantage is not None
    assert batch.return_ is not None
    return batch._replace(
        observation={name: array[:steps][keep] for name, array in batch.observation.items()},
        discrete=batch.discrete[keep],
        continuous=batch.continuous[keep],
        log_prob=batch.log_prob[keep],
        value=batch.value[keep],
        reward=batch.reward[keep],
        advantage=batch.advantage[keep],
        return_=batch.return_[keep],
        keep=keep[keep],
        terminated=None,
        cut=None,
        valid=None,
        reset=None,
        reset_steps=(),
        moments=masked_sums(batch.advantage, keep),
    )

"""Fingerprints of a run: hashes of every update's batch, step by step, and of the resulting network.

Identical runs have identical files. The first difference between two files shows its origin: the environments, the
policy workers or the learner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.learning.trajectories import Trajectories

FINGERPRINTS_FILE = "fingerprints.jsonl"
_DIGITS = 16

# Arrays by writer; see rollmill.specs for the time axis. Step t of the environment's part is x_t and its causes.
_SHOWN = ("reset", "action_mask")
_CAUSED = ("reward", "terminated", "truncated", "valid")
_INFERRED = ("value", "action_discrete", "action_continuous", "log_prob", "policy_version")


class Difference(NamedTuple):
    """The first difference between two runs.

    Attributes:
        update: Index of the first update that differs.
        part: "environment", "inference" or "learner".
        step: Step within the rollout; None for the learner.
    """

    update: int
    part: str
    step: int | None


class Fingerprints:
    """Writes one line for each update.

    Args:
        path: The file.
        observation: The slots' observation arrays ``[num_slots, T + 1, B, ...]``.
        first_update: Index of the next update; lines of earlier updates are kept.
    """

    def __init__(self, path: Path, observation: Mapping[str, NDArray[Any]], *, first_update: int = 0) -> None:
        self._path = path
        self._observation = {name: array.reshape(-1, *array.shape[3:]) for name, array in observation.items()}
        self._chain = hashlib.sha256()
        lines = read_fingerprints(path.parent)[:first_update] if first_update and path.exists() else []
        path.write_text("")
        for line in lines:
            self._write({key: value for key, value in line.items() if key != "chain"})

    def add(
        self, update: int, batch: Trajectories, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Record a batch, and the network and its optimisers after it.

        Args:
            update: Index of the update, from 0.
            batch: The batch, before its slots are released.
            model: Its parameters and buffers, including normalisers, are recorded.
            optimisers: The optimisers of its parameters.
        """
        steps = range(batch.rollout_length + 1)
        self._write(
            {
                "update": update,
                "environment": [_digest(self._of_environment(batch, t)) for t in steps],
                "inference": [_digest(_of_inference(batch, t)) for t in steps],
                "learner": _digest(_of_learner(model, optimisers)),
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        self._chain.update(json.dumps(record).encode())
        with self._path.open("a") as file:
            file.write(json.dumps(record | {"chain": self._chain.hexdigest()}) + "\n")

    def _of_environment(self, batch: Trajectories, step: int) -> Iterable[NDArray[Any]]:
        for array in self._observation.values():
            yield array[batch.observation_index[step]]
        for name in _SHOWN:
            if name in batch.arrays:
                yield batch.arrays[name][step]
        if step:
            for name in _CAUSED:
                yield batch.arrays[name][step - 1]


def _of_inference(batch: Trajectories, step: int) -> Iterable[NDArray[Any]]:
    if step == 0 and "rnn_state" in batch.arrays:
        yield batch.arrays["rnn_state"]
    for name in _INFERRED:
        if name in batch.arrays and step < len(batch.arrays[name]):
            yield batch.arrays[name][step]


def _of_learner(model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> Iterable[NDArray[Any]]:
    for tensor in model.state_dict().values():
        yield _host(tensor)
    for optimiser in optimisers:
        states = optimiser.state_dict()["state"]
        for index in sorted(states):
            for name in sorted(states[index]):
                value = states[index][name]
                yield _host(value) if isinstance(value, Tensor) else np.asarray(value)


def _host(tensor: Tensor) -> NDArray[Any]:
    # Bytes, because NumPy has no bfloat16.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:_DIGITS]


def read_fingerprints(run_dir: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's file, one for each update."""
    return [json.loads(line) for line in (run_dir / FINGERPRINTS_FILE).read_text().splitlines()]


def first_difference(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Difference | None:
    """Find the first difference in the updates that both runs have; None if they agree."""
    for one, other in zip(a, b, strict=False):
        if one["chain"] == other["chain"]:
            continue
        for step in range(len(one["environment"])):
            for part in ("environment", "inference"):
                if one[part][step] != other[part][step]:
                    return Difference(one["update"], part, step)
        return Difference(one["update"], "learner", None)
    return None

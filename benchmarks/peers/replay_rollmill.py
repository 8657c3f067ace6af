"""Rollmill's own replay for other trainers, measured as its peers are."""

from __future__ import annotations

from typing import Any

import numpy as np
from replay_measure import ALPHA, BETA, EPSILON, INSERT, OBS_SIZE, Adapter, Sampled, Transitions, main

import rollmill
from rollmill.replay import Batch, PrioritizedReplay

_FIELDS: Any = {
    "obs": ((OBS_SIZE,), "float32"),
    "action": ((), "int64"),
    "reward": ((), "float32"),
    "terminated": ((), "bool"),
}


class RollmillAdapter(Adapter):
    name = "rollmill"
    configuration = "PrioritizedReplay of independent transitions, weights normalised by the batch"

    def __init__(self, capacity: int) -> None:
        fields = _FIELDS | {"next_obs": ((OBS_SIZE,), "float32")}
        self._replay = PrioritizedReplay(capacity, fields, alpha=ALPHA, beta=BETA, epsilon=EPSILON)
        self._inserted = 0

    @staticmethod
    def versions() -> dict[str, str]:
        return {"rollmill": rollmill.__version__}

    @property
    def size(self) -> int:
        return len(self._replay)

    def insert(self, transitions: Transitions) -> None:
        obs, action, reward, next_obs, terminated = transitions
        self._replay.add(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
        self._inserted += INSERT

    def sample(self, batch: int) -> Batch:
        return self._replay.sample(batch)

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._replay.update_priorities(sampled, td_error)

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        capacity = self._replay.capacity
        place = self._inserted % capacity
        tickets = self._inserted - place + slots - np.where(slots < place, 0, capacity)
        self._replay.update_priorities(tickets, td_error)

    def unpack(self, sampled: Any) -> Sampled:
        return Sampled(Transitions(*(sampled[name] for name in Transitions._fields)), sampled.weights)


if __name__ == "__main__":
    main({"default": RollmillAdapter})

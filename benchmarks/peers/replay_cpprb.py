"""cpprb's prioritised replay: C++ segment trees behind Cython."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer
from replay_measure import ALPHA, BETA, EPSILON, OBS_SIZE, Adapter, Sampled, Transitions, main


class CpprbAdapter(Adapter):
    name = "cpprb"
    configuration = "PrioritizedReplayBuffer, check_for_update off"

    def __init__(self, capacity: int) -> None:
        fields = {
            "obs": {"shape": OBS_SIZE, "dtype": np.float32},
            "action": {"dtype": np.int64},
            "reward": {"dtype": np.float32},
            "next_obs": {"shape": OBS_SIZE, "dtype": np.float32},
            "terminated": {"dtype": np.bool_},
        }
        self._buffer = PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=EPSILON, check_for_update=False)

    @staticmethod
    def versions() -> dict[str, str]:
        return {"cpprb": version("cpprb")}

    @property
    def size(self) -> int:
        return int(self._buffer.get_stored_size())

    def insert(self, transitions: Transitions) -> None:
        self._buffer.add(**transitions._asdict())

    def sample(self, batch: int) -> dict[str, np.ndarray]:
        sampled: dict[str, np.ndarray] = self._buffer.sample(batch, BETA)
        return sampled

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._buffer.update_priorities(sampled["indexes"], td_error)

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        self._buffer.update_priorities(slots, td_error)

    def unpack(self, sampled: Any) -> Sampled:
        return Sampled(Transitions(*(sampled[name] for name in Transitions._fields)), sampled["weights"])


if __name__ == "__main__":
    main({"default": CpprbAdapter})

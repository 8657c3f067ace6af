"""tianshou's prioritised replay: segment trees in NumPy compiled by Numba.

``--variant vector`` is its buffer for 64 environments, which takes 64 transitions in one call; ``single`` is the buffer
for one environment, which takes them one by one.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from replay_measure import ALPHA, BETA, INSERT, Adapter, Sampled, Transitions, main
from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer


class TianshouAdapter(Adapter):
    name = "tianshou"
    configuration = "PrioritizedVectorReplayBuffer of 64 sub-buffers, 64 transitions in one call"

    def __init__(self, capacity: int) -> None:
        self._truncated = np.zeros(INSERT, bool)
        self._buffer: PrioritizedReplayBuffer = self._make(capacity)

    def _make(self, capacity: int) -> PrioritizedReplayBuffer:
        return PrioritizedVectorReplayBuffer(capacity, INSERT, alpha=ALPHA, beta=BETA)

    @staticmethod
    def versions() -> dict[str, str]:
        return {name: version(name) for name in ("tianshou", "numba")}

    @property
    def size(self) -> int:
        return len(self._buffer)

    def _batch(self, t: Transitions) -> Batch:
        return Batch(
            obs=t.obs,
            act=t.action,
            rew=t.reward,
            obs_next=t.next_obs,
            terminated=t.terminated,
            truncated=self._truncated,
        )

    def insert(self, transitions: Transitions) -> None:
        self._buffer.add(self._batch(transitions))

    def sample(self, batch: int) -> tuple[Batch, np.ndarray]:
        sampled: tuple[Batch, np.ndarray] = self._buffer.sample(batch)
        return sampled

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._buffer.update_weight(sampled[1], td_error)

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        self._buffer.update_weight(slots, td_error)

    def tickets(self, capacity: int) -> np.ndarray:
        return np.asarray(self._buffer.act[: self.size])

    def unpack(self, sampled: Any) -> Sampled:
        batch = sampled[0]
        return Sampled(Transitions(batch.obs, batch.act, batch.rew, batch.obs_next, batch.terminated), batch.weight)


class SingleTianshouAdapter(TianshouAdapter):
    configuration = "PrioritizedReplayBuffer, 64 calls for 64 transitions"

    def _make(self, capacity: int) -> PrioritizedReplayBuffer:
        return PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)

    def insert(self, transitions: Transitions) -> None:
        batch = self._batch(transitions)
        for i in range(INSERT):
            self._buffer.add(batch[i])


if __name__ == "__main__":
    main({"vector": TianshouAdapter, "single": SingleTianshouAdapter})

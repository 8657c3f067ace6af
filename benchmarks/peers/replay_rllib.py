"""RLlib's prioritised replay: segment trees and storage in Python.

``--variant sample-batch`` is the buffer of single time steps, ``episodes`` the newer one of episodes, from which DQN
draws today: it looks through all its time steps whenever an episode leaves it.
"""

from __future__ import annotations

from collections import deque
from importlib.metadata import version
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer, PrioritizedReplayBuffer
from replay_measure import ALPHA, BETA, Adapter, Sampled, Transitions, main


class RllibAdapter(Adapter):
    name = "rllib"
    configuration = "PrioritizedReplayBuffer of time steps, 64 in one SampleBatch"

    def __init__(self, capacity: int) -> None:
        self._buffer = PrioritizedReplayBuffer(capacity, "timesteps", alpha=ALPHA)

    @staticmethod
    def versions() -> dict[str, str]:
        return {"ray": version("ray")}

    @property
    def size(self) -> int:
        return len(self._buffer)

    def insert(self, transitions: Transitions) -> None:
        t = transitions
        columns = (t.obs, t.action, t.reward, t.next_obs, t.terminated)
        self._buffer.add(SampleBatch(dict(zip(_COLUMNS, columns, strict=True))))

    def sample(self, batch: int) -> Any:
        return self._buffer.sample(batch, beta=BETA)

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        # Lists: its loops are faster over Python's numbers than over NumPy's.
        self._buffer.update_priorities(sampled["batch_indexes"].tolist(), td_error.tolist())

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        self._buffer.update_priorities(slots.tolist(), td_error.tolist())

    def unpack(self, sampled: Any) -> Sampled:
        return Sampled(Transitions(*(sampled[name] for name in _COLUMNS)), sampled["weights"])


_COLUMNS = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.NEXT_OBS, SampleBatch.TERMINATEDS)


class EpisodesRllibAdapter(Adapter):
    name = "rllib"
    configuration = "PrioritizedEpisodeReplayBuffer, 64 time steps in one episode; a batch is a list of episodes"

    def __init__(self, capacity: int) -> None:
        self._buffer = PrioritizedEpisodeReplayBuffer(capacity, alpha=ALPHA)

    @staticmethod
    def versions() -> dict[str, str]:
        return {"ray": version("ray")}

    @property
    def size(self) -> int:
        return int(self._buffer.get_num_timesteps())

    def insert(self, transitions: Transitions) -> None:
        t = transitions
        episode = SingleAgentEpisode(
            observations=[*t.obs, t.next_obs[-1]],
            actions=[*t.action],
            rewards=t.reward.tolist(),
            terminated=bool(t.terminated[-1]),
            len_lookback_buffer=0,
        )
        self._buffer.add(episode)

    def sample(self, batch: int) -> Any:
        return self._buffer.sample(batch, n_step=1, beta=BETA)

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._buffer.update_priorities(td_error.tolist())

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        nodes = self._buffer._indices
        self._buffer._last_sampled_indices = [nodes[slot][2] for slot in slots.tolist()]
        self._buffer.update_priorities(td_error.tolist())

    def tickets(self, capacity: int) -> np.ndarray:
        episodes: deque[SingleAgentEpisode] = self._buffer.episodes
        return np.concatenate([episode.get_actions() for episode in episodes])

    def unpack(self, sampled: Any) -> Sampled:
        obs = np.array([episode.get_observations(0) for episode in sampled])
        fields = (
            obs,
            np.array([episode.get_actions(0) for episode in sampled]),
            np.array([episode.get_rewards(0) for episode in sampled]),
            obs + 1,  # the next observation of an episode of the benchmark is another transition's
            np.array([episode.is_terminated for episode in sampled]),
        )
        weights = np.array([episode.get_extra_model_outputs("weights", 0) for episode in sampled])
        return Sampled(Transitions(*fields), weights)


if __name__ == "__main__":
    main({"sample-batch": RllibAdapter, "episodes": EpisodesRllibAdapter})

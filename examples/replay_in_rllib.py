"""RLlib's DQN with this replay instead of its own.

``python examples/replay_in_rllib.py --total-steps 50000``, where ``ray[rllib]`` is installed, too (2.60, its new API
stack). RLlib has a place for either half: :class:`RollmillEpisodeReplayBuffer` is what ``replay_buffer_config`` names,
and takes the pieces of episodes that environments bring; :class:`AddDrawn` is a learner connector, which hands whole
arrays to the learner, where RLlib's own replay makes an episode of each transition. For array observations, one agent,
one learner in the process, and networks without memory; RLlib's metrics of its replay are not kept.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

from rollmill.replay import PrioritizedReplay


class Drawn(SingleAgentEpisode):
    """A batch, which RLlib passes on to the learner as it would an episode."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns
        super().__init__()

    def __len__(self) -> int:
        return len(self.columns[Columns.REWARDS])


class AddDrawn(ConnectorV2):
    """Puts a batch's columns where RLlib's connectors, which come after, would put those of episodes."""

    def __call__(self, *, batch: dict[str, Any], episodes: list[Drawn], **_: Any) -> dict[str, Any]:
        for drawn in episodes:
            for column, array in drawn.columns.items():
                self.add_n_batch_items(batch, column, array, len(drawn), drawn)
        return batch


class RollmillEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer):
    """RLlib's interface over :class:`rollmill.replay.PrioritizedReplay`."""

    def __init__(
        self,
        capacity: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        metrics_num_episodes_for_smoothing: int = 100,
        **settings: Any,
    ) -> None:
        # Not PrioritizedEpisodeReplayBuffer's, which takes memory for its trees.
        EpisodeReplayBuffer.__init__(
            self, capacity, metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing
        )
        self.n_step, self.discount, self.settings = n_step, discount, settings
        self.replay: PrioritizedReplay | None = None  # until the first observation says what they are like
        self.streams: dict[str, PrioritizedReplay] = {}  # of the episodes that go on
        self.free_streams: list[PrioritizedReplay] = []

    def add(self, episodes: list[SingleAgentEpisode], weight: float | None = None) -> None:
        for episode in episodes:
            obs, action = episode.get_observations(), episode.get_actions()
            reward = episode.get_rewards().astype(np.float32)
            is_last = np.arange(len(episode)) == len(episode) - 1
            terminated, truncated = is_last & episode.is_terminated, is_last & episode.is_truncated
            stream = self.streams.pop(episode.id_, None)
            if stream is None:
                stream = self.free_streams.pop() if self.free_streams else self._make_stream(obs, action)
            for t in range(len(episode)):
                step = slice(t, t + 1)
                stream.add(
                    obs=obs[step],
                    action=action[step],
                    reward=reward[step],
                    terminated=terminated[step],
                    truncated=truncated[step],
                    next_obs=obs[t + 1 : t + 2],
                )
            if episode.is_done:
                self.free_streams.append(stream)
            else:
                self.streams[episode.id_] = stream

    def _make_stream(self, obs: np.ndarray, action: np.ndarray) -> PrioritizedReplay:
        """Steps of several episodes come mixed, and each step is followed by one of its own episode."""
        if self.replay is None:
            fields = {
                "obs": (obs.shape[1:], obs.dtype),
                "action": (action.shape[1:], action.dtype),
                "reward": ((), "float32"),
            }
            self.replay = PrioritizedReplay(
                self.capacity, fields, n_step=self.n_step, discount=self.discount, **self.settings
            )
        return self.replay.view()

    def sample(self, num_items: int, *, n_step: int, gamma: float, beta: float, **_: Any) -> list[Drawn]:
        if (n_step, gamma) != (self.n_step, self.discount):
            raise ValueError(
                f"the replay adds up n_step={self.n_step} rewards with discount={self.discount}, and the algorithm has "
                f"n_step={n_step} and gamma={gamma}; give replay_buffer_config the same"
            )
        self.batch = batch = self.replay.sample(num_items, beta)
        # RLlib's loss takes gamma ** n_step times the value where nothing terminated; truncation makes n_step less.
        discount = np.where(batch["terminated"], gamma, batch["discount"])
        columns = {
            Columns.OBS: batch["obs"],
            Columns.ACTIONS: batch["action"],
            Columns.REWARDS: batch["reward"],
            Columns.NEXT_OBS: batch["next_obs"],
            Columns.TERMINATEDS: batch["terminated"],
            Columns.TRUNCATEDS: np.zeros(num_items, bool),  # which the loss does not use
            "weights": batch.weights,
            "n_step": np.rint(np.log(discount) / np.log(gamma)) if 0 < gamma < 1 else np.ones(num_items),
        }
        return [Drawn(columns)]

    def update_priorities(self, priorities: np.ndarray, module_id: str | None = None) -> None:
        self.replay.update_priorities(self.batch, priorities)

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        return 0 if self.replay is None else len(self.replay)


def make_config(env_id: str, seed: int, n_step: int = 1, capacity: int = 50_000) -> DQNConfig:
    """Like RLlib's own example for CartPole, with an SGD step after every fourth step of the environment."""
    buffer = RollmillEpisodeReplayBuffer
    return (
        DQNConfig()
        .environment(env_id)
        .env_runners(num_env_runners=0, rollout_fragment_length=max(4, n_step))  # in this process, as the learner is
        .training(
            lr=5e-4,
            gamma=0.99,
            train_batch_size_per_learner=32,
            n_step=n_step,
            epsilon=[(0, 1.0), (10_000, 0.02)],
            replay_buffer_config={
                "type": f"{buffer.__module__}.{buffer.__name__}",
                "capacity": capacity,
                "n_step": n_step,
                "discount": 0.99,
                "alpha": 0.6,
                "beta": 0.4,
                "weights": "global",  # as RLlib's are
                "seed": seed,
            },
        )
        .learners(learner_connector=lambda *spaces: AddDrawn())
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[256], fcnet_activation="tanh"))
        .reporting(min_sample_timesteps_per_iteration=1000)
        .debugging(seed=seed)
    )


def start_ray() -> None:
    """A Ray of one core, which reports nothing."""
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start_ray()
    algorithm = make_config(given.env, given.seed, given.n_step).build_algo()
    begin, steps = time.perf_counter(), 0
    while steps < given.total_steps:
        episodes = algorithm.train()["env_runners"]
        steps = int(episodes["num_env_steps_sampled_lifetime"])
        print(f"{steps} steps: return {episodes['episode_return_mean']:.1f} in the last 1000 or more", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s")
    algorithm.stop()


if __name__ == "__main__":
    main()

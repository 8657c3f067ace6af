"""Stable-Baselines3's DQN with a prioritised replay, which it has none of.

``python examples/replay_in_stable_baselines3.py --total-steps 50000``, where ``stable_baselines3`` is installed, too.
:class:`PrioritizedReplayBuffer` stands where SB3's own buffer does, and :class:`PrioritizedDQN` is DQN with two lines
more in its training step: the importance weights in the loss, and the errors back to the replay.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer

from rollmill.replay import PrioritizedReplay


class Samples(NamedTuple):
    """What SB3's algorithms take, and what prioritised replay adds to it."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor
    batch: Any  # for update_priorities


class PrioritizedReplayBuffer(ReplayBuffer):
    """SB3's interface over :class:`rollmill.replay.PrioritizedReplay`, for array observations."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,  # always: an observation is stored once
        make_replay: Any = PrioritizedReplay,
        **settings: Any,
    ) -> None:
        # Not ReplayBuffer's, which takes memory for all its transitions.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        fields = {
            "obs": (self.obs_shape, observation_space.dtype),
            "action": ((self.action_dim,), action_space.dtype),
            "reward": ((), "float32"),
        }
        self.replay = make_replay(buffer_size, fields, num_envs=n_envs, **settings)
        # Of environments whose episodes go on: the observations that follow.
        self._goes_on = np.zeros(n_envs, bool)
        self._expected = np.empty((0, *self.obs_shape), observation_space.dtype)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        # Each learn() begins with a reset of all environments, wherever they are, which a buffer is not told.
        if not np.array_equal(obs[self._goes_on], self._expected):
            self.replay.interrupt()
        self._goes_on = ~np.asarray(done, bool)
        self._expected = np.array(next_obs)[self._goes_on]
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        self.replay.add(
            obs=obs,
            action=action.reshape(self.n_envs, self.action_dim),
            reward=reward,
            terminated=done & ~truncated,
            truncated=truncated,
            next_obs=next_obs,  # SB3 has put the last observation of an episode here
        )

    def size(self) -> int:
        return len(self.replay)

    def sample(self, batch_size: int, env: Any = None) -> Samples:
        batch = self.replay.sample(batch_size)

        def tensor(name: str) -> torch.Tensor:
            return torch.from_numpy(batch[name]).to(self.device)

        def column(array: Any) -> torch.Tensor:
            return torch.from_numpy(array).to(self.device)[:, None]

        return Samples(
            observations=torch.from_numpy(self._normalize_obs(batch["obs"], env)).to(self.device),
            actions=tensor("action"),
            next_observations=torch.from_numpy(self._normalize_obs(batch["next_obs"], env)).to(self.device),
            dones=column(batch["terminated"]).float(),
            rewards=column(self._normalize_reward(batch["reward"], env)),
            discounts=column(batch["discount"]),  # 0 where the episode terminated
            weights=column(batch.weights),
            batch=batch,
        )


class PrioritizedDQN(DQN):
    """DQN whose replay is a :class:`PrioritizedReplayBuffer`."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                value = self.q_net_target(data.next_observations).max(dim=1, keepdim=True).values
                aim = data.rewards + data.discounts * value
            chosen = self.q_net(data.observations).gather(1, data.actions.long())
            loss = (data.weights * F.smooth_l1_loss(chosen, aim, reduction="none")).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.replay.update_priorities(data.batch, (aim - chosen)[:, 0].detach().cpu().numpy())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")


def make_agent(env_id: str, seed: int, algorithm: type[DQN] = PrioritizedDQN, **buffer: Any) -> DQN:
    """An agent with the settings of SB3's zoo for CartPole."""
    return algorithm(
        "MlpPolicy",
        env_id,
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
        **buffer,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    agent = make_agent(
        given.env,
        given.seed,
        replay_buffer_class=PrioritizedReplayBuffer,
        replay_buffer_kwargs={"n_step": given.n_step, "discount": 0.99, "seed": given.seed},
    )
    begin = time.perf_counter()
    agent.learn(given.total_steps)
    episodes = [episode["r"] for episode in agent.ep_info_buffer][-20:]
    print(f"return {np.mean(episodes):.1f} over the last {len(episodes)} episodes, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()

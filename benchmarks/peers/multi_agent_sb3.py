"""Stable-Baselines3's PPO on several agents with one shared policy: a plain PettingZoo loop.

``simple-spread``: SuperSuit makes each agent a row of a vector environment. ``connect-four``: MaskablePPO of
sb3-contrib on one turn a step, as in PettingZoo's tutorial: the network moves for both players and learns from every
turn. As the next row is the opponent's, its value counts with the opposite sign.

``multi_agent_sb3.py --env connect-four --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from window import Window, make_parser, report


class _Turns(gymnasium.Env[np.ndarray, np.int64]):
    """Connect four, in which a step is one turn. The reward is that of the player who moved."""

    def __init__(self) -> None:
        self._env = connect_four_v3.env()
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (84,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(7)
        self._mask = np.ones(7, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._env.reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        mover = self._env.agent_selection
        self._env.step(int(action))
        is_over = self._env.terminations[mover]
        return self._observe(), float(self._env.rewards[mover]), is_over, False, {}

    def action_masks(self) -> np.ndarray:
        """The legal moves; MaskablePPO asks for them by this name."""
        return self._mask

    def _observe(self) -> np.ndarray:
        view = self._env.observe(self._env.agent_selection)
        self._mask = view["action_mask"]
        return view["observation"].reshape(-1).astype(np.float32)  # type: ignore[no-any-return]  # PettingZoo has no types


class _OpponentsNext(MaskableRolloutBuffer):
    """Generalised advantages where the player of the next row gets the opposite of this one's reward."""

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        next_values, goes_on = last_values.numpy().flatten(), 1.0 - dones.astype(np.float32)
        advantage = np.zeros_like(next_values)
        for step in reversed(range(self.buffer_size)):
            delta = self.rewards[step] - self.gamma * next_values * goes_on - self.values[step]
            advantage = delta - self.gamma * self.gae_lambda * goes_on * advantage
            self.advantages[step] = advantage
            next_values, goes_on = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values


class _Measure(BaseCallback):
    """Looks at the counter before each rollout, that is, when all earlier ones have been learned from."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window

    def _on_rollout_start(self) -> None:
        self._window.update(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._window.is_full


def _turns(num_envs: int, processes: int) -> VecEnv:
    if processes:
        return SubprocVecEnv([_Turns] * num_envs)
    return DummyVecEnv([_Turns] * num_envs)


def _spread(num_envs: int, processes: int) -> VecEnv:
    one = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    env = supersuit.concat_vec_envs_v1(one, num_envs, num_cpus=processes, base_class="stable_baselines3")
    return VecMonitor(env)


def main() -> None:
    parser = make_parser(__doc__ or "", ("connect-four", "simple-spread"))
    parser.add_argument("--num-envs", type=int, default=32, help="games at the same time")
    parser.add_argument(
        "--processes", type=int, default=0, help="0: none besides this; connect four: one for each game"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    is_turns = arguments.env == "connect-four"
    env = (_turns if is_turns else _spread)(arguments.num_envs, arguments.processes)
    batch, minibatch, epochs = (8192, 1024, 2) if is_turns else (3072, 384, 4)
    if batch % env.num_envs:
        parser.error(f"the {env.num_envs} rows of --num-envs {arguments.num_envs} must divide the batch of {batch}")
    settings: dict[str, Any] = {
        "n_steps": batch // env.num_envs,
        "batch_size": minibatch,
        "n_epochs": epochs,
        "learning_rate": 1e-3 if is_turns else 3e-4,
        "ent_coef": 0.04 if is_turns else 0.01,
        "policy_kwargs": {"net_arch": [64, 64]},
    }
    common: dict[str, Any] = {"device": "cpu", "seed": None}
    model: PPO | MaskablePPO
    if is_turns:
        model = MaskablePPO("MlpPolicy", env, rollout_buffer_class=_OpponentsNext, **settings, **common)
    else:
        model = PPO("MlpPolicy", env, **settings, **common)
    window = Window(arguments.seconds, arguments.warm_up)
    try:
        model.learn(10**12, callback=_Measure(window))
    finally:
        env.close()
    chosen = {key: getattr(arguments, key) for key in ("num_envs", "processes", "threads")}
    report(
        "stable-baselines3",
        arguments.env,
        window.steps_per_second,
        frameskip=1,
        precision="fp32",
        config=chosen | settings,
        packages=("stable-baselines3", "torch", "pettingzoo", "mpe2"),
    )


if __name__ == "__main__":
    main()

"""Stable-Baselines3's DQN, SAC and TD3 on the CPU, one environment in one process, with the zoo's settings.

What differs from the zoo: learning starts after ``--learning-starts`` steps, and DQN explores from the beginning as it
does in the end, because this measures the speed with learning and acting by the network.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecFrameStack
from window import Window, make_parser, report

_ENVS = ("pong-dqn", "cartpole-dqn", "halfcheetah-sac", "halfcheetah-td3")


class _Measure(BaseCallback):
    """Looks at the counter before each rollout, that is, when the updates for all earlier steps are done."""

    def __init__(self, window: Window, learning_starts: int) -> None:
        super().__init__()
        self._window = window
        self._learning_starts = learning_starts

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > self._learning_starts:
            self._window.update(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._window.is_full


def _make(env: str, learning_starts: int) -> tuple[OffPolicyAlgorithm, dict[str, Any]]:
    common: dict[str, Any] = {"learning_starts": learning_starts, "device": "cpu", "seed": 0}
    settings: dict[str, Any]
    if env == "pong-dqn":
        import ale_py  # noqa: F401  (registers the games)

        settings = {
            "buffer_size": 100_000,
            "batch_size": 32,
            "train_freq": 4,
            "gradient_steps": 1,
            "learning_rate": 1e-4,
            "target_update_interval": 1000,
            "exploration_initial_eps": 0.01,
            "exploration_final_eps": 0.01,
        }
        game = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 1, seed=0), n_stack=4)
        return DQN("CnnPolicy", game, **settings, **common), settings
    if env == "cartpole-dqn":
        settings = {
            "buffer_size": 100_000,
            "batch_size": 64,
            "train_freq": 256,
            "gradient_steps": 128,
            "learning_rate": 2.3e-3,
            "target_update_interval": 10,
            "exploration_initial_eps": 0.04,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        }
        return DQN("MlpPolicy", make_vec_env("CartPole-v1", 1, seed=0), **settings, **common), settings
    cheetah = make_vec_env("HalfCheetah-v5", 1, seed=0)
    if env == "halfcheetah-sac":
        settings = {"buffer_size": 1_000_000, "batch_size": 256, "train_freq": 1, "gradient_steps": 1}
        return SAC("MlpPolicy", cheetah, **settings, **common), settings
    settings = {
        "buffer_size": 1_000_000,
        "batch_size": 256,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_rate": 1e-3,
        "policy_kwargs": {"net_arch": [400, 300]},
    }
    noise = NormalActionNoise(np.zeros(6), np.full(6, 0.1))
    return TD3("MlpPolicy", cheetah, action_noise=noise, **settings, **common), {**settings, "noise": 0.1}


def main() -> None:
    parser = make_parser(__doc__ or "", _ENVS)
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, settings = _make(arguments.env, arguments.learning_starts)
    window = Window(arguments.seconds, arguments.warm_up)
    model.learn(10**12, callback=_Measure(window, arguments.learning_starts))
    assert model.env is not None
    model.env.close()
    report(
        "stable-baselines3",
        arguments.env,
        window.steps_per_second,
        frameskip=4 if arguments.env == "pong-dqn" else 1,
        precision="fp32 (it has no other)",
        config={"threads": arguments.threads, **settings},
        packages=("stable-baselines3", "torch", "gymnasium"),
        steps_per_cpu_second=window.steps_per_cpu_second,
    )


if __name__ == "__main__":
    main()

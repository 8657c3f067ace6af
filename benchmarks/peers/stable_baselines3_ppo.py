"""Stable-Baselines3's PPO on the CPU, with the network, batch and epochs of Rollmill's presets."""

from __future__ import annotations

from typing import Any

import ale_py  # noqa: F401  (registers the games)
import torch
from gymnasium import spaces
from networks import TanhTorso
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack
from torch import Tensor
from window import Window, make_parser, report


class _Measure(BaseCallback):
    """Looks at the counter before each rollout, that is, when all earlier ones have been learned from."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window

    def _on_rollout_start(self) -> None:
        self._window.update(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._window.is_full


class _SharedTorso(BaseFeaturesExtractor):
    """One torso for policy and value; SB3's own ``net_arch`` gives each a torso."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, TanhTorso.width)
        self._torso = TanhTorso(observation_space.shape[0])

    def forward(self, observation: Tensor) -> Tensor:
        return self._torso(observation)


def _make(env: str, num_envs: int, vec_env: type[DummyVecEnv] | type[SubprocVecEnv]) -> VecEnv:
    if env == "atari":
        return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", num_envs, seed=0, vec_env_cls=vec_env), n_stack=4)
    return make_vec_env("CartPole-v1", num_envs, seed=0, vec_env_cls=vec_env)


# Where the search of peers.py begins.
_ATARI: dict[str, Any] = {"num_envs": 8, "vec_env": "subproc", "threads": 2}
_CARTPOLE: dict[str, Any] = {"num_envs": 32, "vec_env": "dummy", "threads": 1}


def main() -> None:
    parser = make_parser(__doc__ or "", ("atari", "cartpole"))
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--vec-env", choices=("dummy", "subproc"))
    parser.add_argument("--threads", type=int, help="torch threads")
    arguments = parser.parse_args()
    best = _ATARI if arguments.env == "atari" else _CARTPOLE
    given = {key: getattr(arguments, key) for key in best}
    config: dict[str, Any] = {key: best[key] if value is None else value for key, value in given.items()}
    torch.set_num_threads(config["threads"])
    num_envs = config["num_envs"]
    env = _make(arguments.env, num_envs, SubprocVecEnv if config["vec_env"] == "subproc" else DummyVecEnv)
    batch, minibatch = 1024, 128 if arguments.env == "atari" else 256
    if batch % num_envs:
        parser.error(f"--num-envs {num_envs} must divide the batch of {batch}")
    common: dict[str, Any] = {"n_steps": batch // num_envs, "batch_size": minibatch, "device": "cpu", "seed": 0}
    if arguments.env == "atari":
        settings = {"n_epochs": 1, "clip_range": 0.1, "ent_coef": 0.01, "learning_rate": 8e-4}
        model = PPO("CnnPolicy", env, **common, **settings)
    else:
        settings = {"n_epochs": 4, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
        shared = {"features_extractor_class": _SharedTorso, "net_arch": []}
        model = PPO("MlpPolicy", env, **common, **settings, policy_kwargs=shared)
    window = Window(arguments.seconds, arguments.warm_up)
    try:
        model.learn(10**12, callback=_Measure(window))
    finally:
        env.close()
    report(
        "stable-baselines3",
        arguments.env,
        window.steps_per_second,
        frameskip=4 if arguments.env == "atari" else 1,
        precision="fp32, channels first (it has no other)",
        config={**config, **common, **settings},
        packages=("stable-baselines3", "torch", "gymnasium", "ale-py"),
    )


if __name__ == "__main__":
    main()

"""Stable-Baselines3 with its default hyperparameters on the CPU: one run and its evaluation, as one line of JSON.

PPO, DQN, SAC and TD3 are constructed from a policy and an environment alone; the policy is "CnnPolicy" for pictures,
"MultiInputPolicy" for dictionaries and "MlpPolicy" otherwise. The number of environments is the default of
``make_vec_env``, 1. Three settings follow the library's documentation instead, because a user of it needs them:

- Atari: ``make_atari_env`` with 4 environments for PPO and 1 for DQN, and a stack of 4 frames, as in its example.
- Pictures with DQN: a replay of 100,000 transitions, because the default of 1,000,000 takes 56 GB.
- MiniGrid and VizDoom: the environment is Rollmill's, so that both libraries have the same observations and actions.

``--algo random`` plays uniformly random actions and trains nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

_ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN, "sac": SAC, "td3": TD3}
_EVALUATION_ENVS = 5
_EVALUATION_SEED = 1_000_000  # added to the seed of training, so that evaluations begin elsewhere
_REPLAY_OF_PICTURES = 100_000


class _RandomPlay:
    """Uniformly random actions, in the form that ``evaluate_policy`` asks for."""

    def __init__(self, action_space: spaces.Space[Any], seed: int) -> None:
        self._action_space = action_space
        self._action_space.seed(seed)

    def predict(self, observations: Any, state: Any = None, **_: Any) -> tuple[Any, Any]:
        first = next(iter(observations.values())) if isinstance(observations, dict) else observations
        return np.stack([self._action_space.sample() for _ in range(len(first))]), state


def make(name: str, num_envs: int, seed: int, max_episode_steps: int | None) -> VecEnv:
    """Environments of a preset's name, ``<family>/<id>``."""
    family, _, id = name.partition("/")
    if family == "atari":
        import ale_py

        gymnasium.register_envs(ale_py)
        game = "".join(part.capitalize() for part in id.split("_"))
        return VecFrameStack(make_atari_env(f"{game}NoFrameskip-v4", num_envs, seed=seed), n_stack=4)
    return make_vec_env(lambda: _limited(_maker(family, id)(), max_episode_steps), num_envs, seed=seed)


def _limited(env: gymnasium.Env[Any, Any], max_episode_steps: int | None) -> gymnasium.Env[Any, Any]:
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


def _maker(family: str, id: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    if family in ("minigrid", "vizdoom"):
        sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    if family == "minigrid":
        import minigrid  # noqa: F401  (registers the environments)

        from rollmill.envs.minigrid import Numbers

        return lambda: Numbers(gymnasium.make(id))
    if family == "vizdoom":
        from rollmill.envs import vizdoom
        from rollmill.envs.config import EnvConfig, VizdoomOptions

        maker = vizdoom.maker(EnvConfig(name=f"vizdoom/{id}", vizdoom=VizdoomOptions(measurements=True)))
        assert maker.env is not None
        return maker.env
    return lambda: gymnasium.make(id)


def policy_of(space: spaces.Space[Any]) -> str:
    """Stable-Baselines3's policy for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if _is_picture(space) else "MlpPolicy"


def _is_picture(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _train(arguments: argparse.Namespace) -> tuple[BaseAlgorithm, dict[str, Any]]:
    is_atari = arguments.env.startswith("atari/")
    env = make(arguments.env, 4 if is_atari and arguments.algo == "ppo" else 1, arguments.seed, arguments.limit)
    settings: dict[str, Any] = {}
    parts = (
        env.observation_space.values() if isinstance(env.observation_space, spaces.Dict) else (env.observation_space,)
    )
    if arguments.algo == "dqn" and any(map(_is_picture, parts)):
        settings["buffer_size"] = _REPLAY_OF_PICTURES
    policy = policy_of(env.observation_space)
    model = _ALGORITHMS[arguments.algo](policy, env, seed=arguments.seed, device="cpu", **settings)
    model.learn(arguments.steps)
    last = [episode["r"] for episode in model.ep_info_buffer or ()]
    settings = {"policy": policy, "num_envs": env.num_envs, **settings}
    env.close()
    return model, {
        "agent_steps": model.num_timesteps,
        "training_return": float(np.mean(last)) if last else None,
        "settings": settings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="a preset's name of Rollmill's, such as gym/Acrobot-v1")
    parser.add_argument("--algo", choices=(*_ALGORITHMS, "random"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="agent steps of training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the evaluation")
    parser.add_argument("--sampled", action="store_true", help="evaluate with sampled actions, not the best ones")
    parser.add_argument("--limit", type=int, help="time limit in agent steps, over the environment's own")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    model: Any
    if arguments.algo == "random":
        env = make(arguments.env, 1, arguments.seed, arguments.limit)
        model, found = _RandomPlay(env.action_space, arguments.seed), {"agent_steps": 0}
        env.close()
    else:
        model, found = _train(arguments)
    trained = time.perf_counter()
    envs = make(
        arguments.env, min(_EVALUATION_ENVS, arguments.episodes), _EVALUATION_SEED + arguments.seed, arguments.limit
    )
    returns, lengths = evaluate_policy(
        model,
        envs,
        n_eval_episodes=arguments.episodes,
        deterministic=not arguments.sampled,
        return_episode_rewards=True,
    )
    envs.close()
    result = {
        **found,
        "returns": [float(value) for value in returns],
        "lengths": [int(value) for value in lengths],  # of Atari in frames, as its Monitor counts
        "training_seconds": trained - started,
        "evaluation_seconds": time.perf_counter() - trained,
        "versions": {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__},
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

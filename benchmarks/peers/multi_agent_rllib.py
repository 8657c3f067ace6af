"""RLlib's PPO (its new API stack) on several agents with one shared policy.

``simple-spread``: ParallelPettingZooEnv and RLlib's own network. ``connect-four``: PettingZooEnv, where the board and
the mask of legal moves are one flat vector, because arrays pass RLlib's connectors faster than dictionaries; a network
like RLlib's own takes the board from it.

``multi_agent_rllib.py --env connect-four --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from torch import nn
from window import Window, make_parser, report

_POLICY = "shared"
_BOARD = 84
_MOVES = 7


class _ConnectFour(PettingZooEnv):  # type: ignore[misc]  # RLlib has no types
    """The same with flat observations: the board, then the mask of legal moves."""

    def __init__(self) -> None:
        super().__init__(connect_four_v3.env())
        space = gymnasium.spaces.Box(0.0, 1.0, (_BOARD + _MOVES,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.observation_space = gymnasium.spaces.Dict(self.observation_spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        views, infos = super().reset(seed=seed, options=options)
        return _flat(views), infos

    def step(self, action: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        views, *others = super().step(action)
        return (_flat(views), *others)


def _flat(views: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
        agent: np.concatenate((view["observation"].reshape(-1), view["action_mask"])).astype(np.float32)
        for agent, view in views.items()
    }


class _MaskedModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]  # RLlib has no types
    """Policy and value network of two layers each; illegal moves have no probability."""

    def setup(self) -> None:
        self._policy = _mlp(_MOVES)
        self._value = _mlp(1)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        board, mask = batch[Columns.OBS].split((_BOARD, _MOVES), dim=-1)
        logits = self._policy(board).masked_fill(mask == 0, torch.finfo(torch.float32).min)
        return {Columns.ACTION_DIST_INPUTS: logits}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self._value(batch[Columns.OBS][..., :_BOARD]).squeeze(-1)  # type: ignore[no-any-return]  # a module's call is Any


def _mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(_BOARD, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def _config(env: str, num_env_runners: int, num_envs: int) -> PPOConfig:
    is_turns = env == "connect-four"
    if is_turns:
        ray.tune.register_env(env, lambda _: _ConnectFour())
        module = RLModuleSpec(module_class=_MaskedModule)
    else:
        ray.tune.register_env(env, lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))
        layers = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        module = RLModuleSpec(model_config=layers)
    batch, minibatch, epochs = (8192, 1024, 2) if is_turns else (3072, 384, 4)
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs)
        .multi_agent(
            policies={_POLICY},
            policy_mapping_fn=lambda agent_id, episode, **kwargs: _POLICY,
            count_steps_by="agent_steps",
        )
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={_POLICY: module}))
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=minibatch,
            num_epochs=epochs,
            lr=1e-3 if is_turns else 3e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.04 if is_turns else 0.01,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            use_kl_loss=False,
        )
    )


def main() -> None:
    parser = make_parser(__doc__ or "", ("connect-four", "simple-spread"))
    parser.add_argument("--num-env-runners", type=int, default=2, help="processes with environments; 0: this one")
    parser.add_argument("--num-envs", type=int, default=16, help="environments of each of them")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the learner")
    arguments = parser.parse_args()
    # More than the cores, as the learner waits while its environments run.
    ray.init(num_cpus=arguments.num_env_runners + 1, include_dashboard=False, log_to_driver=False)
    torch.set_num_threads(arguments.threads)
    algorithm = _config(arguments.env, arguments.num_env_runners, arguments.num_envs).build_algo()
    window = Window(arguments.seconds, arguments.warm_up)
    try:
        while not window.is_full:
            # An iteration ends when its batch has been learned from: then all that were sampled have been.
            sampled = algorithm.train()["env_runners"]["num_module_steps_sampled_lifetime"]
            window.update(int(sampled[_POLICY]))
    finally:
        algorithm.stop()
        ray.shutdown()
    report(
        "rllib",
        arguments.env,
        window.steps_per_second,
        frameskip=1,
        precision="fp32",
        config={key: getattr(arguments, key) for key in ("num_env_runners", "num_envs", "threads")},
        packages=("ray", "torch", "pettingzoo", "mpe2"),
    )


if __name__ == "__main__":
    main()

"""RLlib's PPO (its new API stack) with the network, batch and epochs of Rollmill's presets.

A module of our own computes the torso once for policy and value. The connectors of env runners have no state here, so
none is merged or broadcast. Several batches make an iteration, because each iteration reduces and reports metrics.

``rllib_ppo.py --env atari --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import ray
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium_tasks import MAX_GRAD_NORM, TASKS, VALUE_COEF, make_env
from networks import PRECISIONS, fastest, make_network
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from window import Window, make_parser, report

_BATCHES = {"atari": 1, "cartpole": 8}  # of an iteration


class _Module(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]  # RLlib has no types
    """Policy and value with one torso."""

    def setup(self) -> None:
        self._net = make_network(self.model_config["env"], self.model_config["precision"])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self._net.actor(self._net.torso(batch[Columns.OBS]))}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features = self._net.torso(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self._net.actor(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        features = self._net.torso(batch[Columns.OBS]) if embeddings is None else embeddings
        return self._net.critic(features).squeeze(-1)  # type: ignore[no-any-return]  # a module's call is Any


def _config(arguments: Any, precision: str) -> PPOConfig:
    env, task = arguments.env, TASKS[arguments.env]
    is_ale = arguments.vector == "ale"

    def make(context: dict[str, Any]) -> Any:
        if is_ale:  # in its own reset mode, which RLlib expects
            return AtariVectorEnv("breakout", context["num_envs"], num_threads=arguments.threads)
        return make_env(env)

    ray.tune.register_env("task", make)
    return (
        PPOConfig()
        .environment("task")
        .env_runners(
            num_env_runners=arguments.num_env_runners,
            num_envs_per_env_runner=arguments.num_envs,
            gym_env_vectorize_mode="vector_entry_point" if is_ale else "sync",
            merge_env_runner_states=False,
            broadcast_env_runner_states=False,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=_Module, model_config={"env": env, "precision": precision}))
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=task.batch,
            minibatch_size=task.minibatch,
            num_epochs=task.epochs,
            lr=task.learning_rate,
            gamma=task.discount,
            lambda_=task.gae_lambda,
            clip_param=task.clip_range,
            entropy_coeff=task.entropy_coef,
            vf_loss_coeff=VALUE_COEF,
            grad_clip=MAX_GRAD_NORM,
            use_kl_loss=False,
        )
        .reporting(min_sample_timesteps_per_iteration=task.batch * _BATCHES[env])
    )


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(TASKS))
    parser.add_argument("--num-env-runners", type=int, default=2, help="processes with environments; 0: this one")
    parser.add_argument("--num-envs", type=int, default=16, help="environments of each of them")
    parser.add_argument("--vector", choices=("sync", "ale"), default="sync", help="Gymnasium's vector, or ALE's in C++")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the learner, and ALE's of a process")
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    precision = fastest(arguments.env) if arguments.precision == "auto" else arguments.precision
    window = Window(arguments.seconds, arguments.warm_up)
    with tempfile.TemporaryDirectory(prefix="peer-rllib-", ignore_cleanup_errors=True) as folder:
        # More than the cores, as the learner waits while its environments run.
        num_cpus = arguments.num_env_runners + 1
        ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            algorithm = _config(arguments, precision).build_algo()
            while not window.is_full:
                # An iteration ends when its batches have been learned from: then all that were sampled have been.
                window.update(int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"]))
            algorithm.stop()
            shutil.rmtree(algorithm.logdir, ignore_errors=True)  # in the user's home
        finally:
            ray.shutdown()
    report(
        "rllib",
        arguments.env,
        window.steps_per_second,
        frameskip=TASKS[arguments.env].frameskip,
        precision=PRECISIONS[precision].name,
        config={key: getattr(arguments, key) for key in ("num_env_runners", "num_envs", "vector", "threads")},
        packages=("ray", "torch", "gymnasium", "ale-py"),
    )


if __name__ == "__main__":
    main()

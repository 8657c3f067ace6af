"""Tianshou's PPO with the network, batch and epochs of Rollmill's presets.

Its collector and its algorithm are called in turn, as its procedural API has it; nothing is tested or logged. Vectors
are Tianshou's own of Gymnasium's single environments, or EnvPool's, which Tianshou's Atari factory takes where it is
installed. Next observations are taken from the following row (``ignore_obs_next``), as in its Atari examples.

``tianshou_ppo.py --env atari --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

from typing import Any

import envpool
import torch
from gymnasium_tasks import MAX_GRAD_NORM, TASKS, VALUE_COEF, make_env
from networks import PRECISIONS, fastest, make_network
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv
from tianshou.utils.net.common import ModuleWithVectorOutput
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step
from window import Window, make_parser, report


class _Torso(ModuleWithVectorOutput):  # type: ignore[misc]  # Tianshou has no types in this environment
    """The torso as Tianshou calls it: on arrays, with a state."""

    def __init__(self, torso: Any) -> None:
        super().__init__(torso.width)
        self._torso = torso

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        return self._torso(torch.as_tensor(obs)), state


def _vector(env: str, num_envs: int, kind: str) -> Any:
    if kind == "envpool":
        return envpool.make_gymnasium("Breakout-v5", num_envs=num_envs, num_threads=2, reward_clip=True)
    return (ShmemVectorEnv if kind == "shmem" else DummyVectorEnv)([lambda: make_env(env)] * num_envs)


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(TASKS))
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument(
        "--vector", choices=("dummy", "shmem", "envpool"), default="dummy", help="as Tianshou names them"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    arguments = parser.parse_args()
    task, num_envs = TASKS[arguments.env], arguments.num_envs
    if task.batch % num_envs:
        parser.error(f"--num-envs {num_envs} must divide the batch of {task.batch}")
    torch.set_num_threads(arguments.threads)
    precision = fastest(arguments.env) if arguments.precision == "auto" else arguments.precision
    network, single = make_network(arguments.env, precision), make_env(arguments.env)
    torso = _Torso(network.torso)
    actor = DiscreteActor(preprocess_net=torso, action_shape=int(single.action_space.n), softmax_output=False)
    algorithm = PPO(
        policy=DiscreteActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits, validate_args=False),
            action_space=single.action_space,
            observation_space=single.observation_space,
        ),
        critic=DiscreteCritic(preprocess_net=torso),
        optim=AdamOptimizerFactory(lr=task.learning_rate, eps=1e-5),
        eps_clip=task.clip_range,
        vf_coef=VALUE_COEF,
        ent_coef=task.entropy_coef,
        max_grad_norm=MAX_GRAD_NORM,
        gae_lambda=task.gae_lambda,
        gamma=task.discount,
        max_batchsize=task.minibatch,
    )
    env = _vector(arguments.env, num_envs, arguments.vector)
    buffer = VectorReplayBuffer(task.batch, num_envs, ignore_obs_next=True)
    collector = Collector(algorithm, env, buffer)
    collector.reset()
    window, steps = Window(arguments.seconds, arguments.warm_up), 0
    try:
        while not window.is_full:
            window.update(steps)
            with policy_within_training_step(algorithm.policy):
                collected = collector.collect(n_step=task.batch)
                algorithm.update(buffer, batch_size=task.minibatch, repeat=task.epochs)
            collector.reset_buffer(keep_statistics=True)
            steps += collected.n_collected_steps
    finally:
        env.close()
    report(
        "tianshou",
        arguments.env,
        window.steps_per_second,
        frameskip=task.frameskip,
        precision=PRECISIONS[precision].name,
        config={key: getattr(arguments, key) for key in ("num_envs", "vector", "threads")},
        packages=("tianshou", "torch", "gymnasium", "ale-py", "envpool"),
    )


if __name__ == "__main__":
    main()

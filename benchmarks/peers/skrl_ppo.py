"""skrl's PPO on Gymnasium's vectors of environments, with the network, batch and epochs of Rollmill's presets.

Policy and value are one model whose torso is computed once, as in skrl's examples of shared models. Its documented
StepTrainer is used, without tracking, and with no checkpoints.

``skrl_ppo.py --env atari --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium_tasks import MAX_GRAD_NORM, TASKS, VALUE_COEF, VECTORS, make_vector
from networks import PRECISIONS, fastest, make_network
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import StepTrainer
from window import Window, make_parser, report


class _Shared(CategoricalMixin, DeterministicMixin, Model):  # type: ignore[misc]  # skrl has no types
    """Policy and value with one torso, which is computed once for each pair of calls."""

    def __init__(self, env: str, precision: str, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]):
        Model.__init__(self, observation_space=observations, action_space=actions, device="cpu")
        CategoricalMixin.__init__(self, unnormalized_log_prob=True, role="policy")
        DeterministicMixin.__init__(self, clip_actions=False, role="value")
        self._net = make_network(env, precision)
        self._features: torch.Tensor | None = None

    def act(self, inputs: dict[str, Any], *, role: str = "") -> Any:
        mixin = CategoricalMixin if role == "policy" else DeterministicMixin
        return mixin.act(self, inputs, role=role)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        # skrl flattens observations.
        observations = inputs["observations"].unflatten(-1, self.observation_space.shape)
        if role == "policy":
            self._features = self._net.torso(observations)
            return self._net.actor(self._features), {}
        features = self._net.torso(observations) if self._features is None else self._features
        self._features = None
        return self._net.critic(features), {}


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(TASKS))
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--vector", choices=VECTORS, default="sync", help="how the environments run")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    arguments = parser.parse_args()
    task = TASKS[arguments.env]
    torch.set_num_threads(arguments.threads)
    precision = fastest(arguments.env) if arguments.precision == "auto" else arguments.precision
    if task.batch % arguments.num_envs:
        parser.error(f"--num-envs {arguments.num_envs} must divide the batch of {task.batch}")
    rollout = task.batch // arguments.num_envs
    env = wrap_env(make_vector(arguments.env, arguments.num_envs, arguments.vector), wrapper="gymnasium", verbose=False)
    model = _Shared(arguments.env, precision, env.observation_space, env.action_space)
    agent = PPO(
        models={"policy": model, "value": model},
        memory=RandomMemory(memory_size=rollout, num_envs=arguments.num_envs, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=PPO_CFG(
            rollouts=rollout,
            learning_epochs=task.epochs,
            mini_batches=task.minibatches,
            discount_factor=task.discount,
            gae_lambda=task.gae_lambda,
            learning_rate=task.learning_rate,
            grad_norm_clip=MAX_GRAD_NORM,
            ratio_clip=task.clip_range,
            value_clip=0.0,
            entropy_loss_scale=task.entropy_coef,
            value_loss_scale=VALUE_COEF,
            experiment={"write_interval": 0, "checkpoint_interval": 0},
        ),
    )
    settings = {"timesteps": 10**9, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer = StepTrainer(env=env, agents=agent, cfg=settings)
    window, steps = Window(arguments.seconds, arguments.warm_up), 0
    try:
        while not window.is_full:
            window.update(steps)
            for _ in range(rollout):
                trainer.train()
            steps += task.batch
    finally:
        env.close()
    report(
        "skrl",
        arguments.env,
        window.steps_per_second,
        frameskip=task.frameskip,
        precision=PRECISIONS[precision].name,
        config={key: getattr(arguments, key) for key in ("num_envs", "vector", "threads")},
        packages=("skrl", "torch", "gymnasium", "ale-py"),
    )


if __name__ == "__main__":
    main()

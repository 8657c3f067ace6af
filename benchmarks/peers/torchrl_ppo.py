"""TorchRL's PPO with the network, batch and epochs of Rollmill's presets: its collectors, GAE and ClipPPOLoss.

The collectors are processes that share memory with the learner and collect while it learns (MultiAsyncCollector), or
take turns with it (``--processes 0``: its Collector in this process). Each steps a vector of Gymnasium, because
TorchRL's own vectors pay for a TensorDict per environment. The value is computed with the action, so that GAE needs
no second pass, and the loss has the heads alone, so that the torso is computed once for a minibatch.

``torchrl_ppo.py --env atari --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")  # it logs to standard output, which is for JSON

from functools import partial
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from gymnasium_tasks import MAX_GRAD_NORM, TASKS, VALUE_COEF, VECTORS, Task, make_vector
from networks import PRECISIONS, fastest, make_network
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiAsyncCollector
from torchrl.envs import EnvBase, GymWrapper
from torchrl.modules import ActorValueOperator, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate
from window import Window, make_parser, report


def _make(env: str, num_envs: int, kind: str, threads: int) -> EnvBase:
    # TorchRL resets environments itself where it can; ALE's vector cannot leave that to others.
    autoreset = AutoresetMode.SAME_STEP if kind == "ale" else AutoresetMode.DISABLED
    return GymWrapper(make_vector(env, num_envs, kind, threads, autoreset), categorical_action_encoding=True)


def _operator(network: Any) -> ActorValueOperator:
    policy = ProbabilisticActor(
        TensorDictModule(network.actor, in_keys=["hidden"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        distribution_kwargs={"validate_args": False},
        return_log_prob=True,
        log_prob_key="sample_log_prob",
    )
    torso = TensorDictModule(network.torso, in_keys=["observation"], out_keys=["hidden"])
    return ActorValueOperator(torso, policy, ValueOperator(network.critic, in_keys=["hidden"]))


def _rows(data: TensorDictBase, network: Any, task: Task) -> TensorDict:
    """A row for each sample, with its advantage; collected data are ``[num_envs, time]``."""
    with torch.no_grad():
        last = network.critic(network.torso(data["next", "observation"][:, -1])).unsqueeze(1)
    values, done = data["state_value"], data["next", "done"]
    after = torch.cat((values[:, 1:], last), 1)
    advantage, target = vec_generalized_advantage_estimate(
        task.discount, task.gae_lambda, values, after, data["next", "reward"], done
    )
    names = ("observation", "action", "sample_log_prob")
    rows = {name: data[name].flatten(0, 1) for name in names}
    rows |= {"advantage": advantage.flatten(0, 1), "value_target": target.flatten(0, 1)}
    return TensorDict(rows, data.numel())


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(TASKS))
    parser.add_argument("--num-envs", type=int, default=64, help="environments of each process")
    parser.add_argument("--processes", type=int, default=1, help="collectors beside this process; 0: it is one itself")
    parser.add_argument("--vector", choices=VECTORS, default="sync", help="how the environments run")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the learner, and ALE's of a process")
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    arguments = parser.parse_args()
    env, task = arguments.env, TASKS[arguments.env]
    torch.set_num_threads(arguments.threads)
    precision = fastest(env) if arguments.precision == "auto" else arguments.precision
    network = make_network(env, precision)
    operator = _operator(network)
    torso = operator.module[0]
    loss = ClipPPOLoss(
        operator.get_policy_head(),
        operator.get_value_head(),
        clip_epsilon=task.clip_range,
        entropy_bonus=bool(task.entropy_coef),
        entropy_coeff=task.entropy_coef,
        critic_coeff=VALUE_COEF,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    loss.set_keys(sample_log_prob="sample_log_prob")
    optimiser = torch.optim.Adam(network.parameters(), lr=task.learning_rate, eps=1e-5, fused=True)
    make = partial(_make, env, arguments.num_envs, arguments.vector, arguments.threads)
    # The hidden layer is not worth its transport.
    policy = operator.select_out_keys("action", "sample_log_prob", "state_value")
    common: dict[str, Any] = {
        "frames_per_batch": task.batch,
        "total_frames": -1,
        "auto_register_policy_transforms": False,
    }
    if arguments.processes:
        collector: Any = MultiAsyncCollector([make] * arguments.processes, policy, **common)
    else:
        collector = Collector(make, policy, **common)
    window, steps = Window(arguments.seconds, arguments.warm_up), 0
    try:
        for data in collector:
            rows = _rows(data, network, task)
            for _ in range(task.epochs):
                for part in torch.randperm(len(rows)).split(task.minibatch):
                    losses = loss(torso(rows[part]))
                    optimiser.zero_grad()
                    sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
                    nn.utils.clip_grad_norm_(network.parameters(), MAX_GRAD_NORM)
                    optimiser.step()
            collector.update_policy_weights_()
            steps += len(rows)
            window.update(steps)
            if window.is_full:
                break
    finally:
        collector.shutdown()
    report(
        "torchrl",
        env,
        window.steps_per_second,
        frameskip=task.frameskip,
        precision=PRECISIONS[precision].name,
        config={key: getattr(arguments, key) for key in ("num_envs", "processes", "vector", "threads")},
        packages=("torchrl", "tensordict", "torch", "gymnasium", "ale-py"),
    )


if __name__ == "__main__":
    main()

"""TorchRL's PPO on several agents with one shared policy: its collectors, GAE and ClipPPOLoss.

PettingZooWrapper has all agents in one group. In ``connect-four`` the network also computes a move for the player who
waits, since a group acts as one; only the turns of those who moved are learned from and counted.

``multi_agent_torchrl.py --env connect-four --seconds 20``; usually started by ``benchmarks/peers.py``.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import EnvBase, MarlGroupMapType, PettingZooWrapper, SerialEnv
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from window import Window, make_parser, report

_GROUP = "agents"
_AGENTS = 3  # of simple spread
_SIZES = {"connect-four": (84, 7), "simple-spread": (18, 5)}


class _Flat(nn.Module):
    """Two layers on the flattened observation of each agent."""

    def __init__(self, env: str, outputs: int) -> None:
        super().__init__()
        inputs = _SIZES[env][0]
        self._dims = 3 if env == "connect-four" else 1
        self._layers = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self._layers(observation.flatten(-self._dims).float())  # type: ignore[no-any-return]  # a module's call is Any


def _make(env: str) -> EnvBase:
    warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")
    groups = MarlGroupMapType.ALL_IN_ONE_GROUP
    if env == "connect-four":
        return PettingZooWrapper(connect_four_v3.env(), group_map=groups, use_mask=True)
    return PettingZooWrapper(simple_spread_v3.parallel_env(), group_map=groups)


def _batched(env: str, num_envs: int) -> EnvBase:
    return SerialEnv(num_envs, partial(_make, env)) if num_envs > 1 else _make(env)


def _observation(env: str) -> tuple[str, ...]:
    # PettingZooWrapper leaves the observation in a dictionary where a mask was beside it.
    return (_GROUP, "observation", "observation") if env == "connect-four" else (_GROUP, "observation")


def _networks(env: str) -> tuple[ProbabilisticActor, ValueOperator]:
    is_turns = env == "connect-four"
    keys = {"logits": (_GROUP, "logits")} | ({"mask": (_GROUP, "action_mask")} if is_turns else {})
    actor = ProbabilisticActor(
        TensorDictModule(_Flat(env, _SIZES[env][1]), in_keys=[_observation(env)], out_keys=[(_GROUP, "logits")]),
        in_keys=keys,
        out_keys=[(_GROUP, "action")],
        distribution_class=MaskedCategorical if is_turns else torch.distributions.Categorical,
        return_log_prob=True,
        log_prob_key=(_GROUP, "sample_log_prob"),
    )
    critic = ValueOperator(_Flat(env, 1), in_keys=[_observation(env)], out_keys=[(_GROUP, "state_value")])
    return actor, critic


def _collector(env: str, actor: ProbabilisticActor, arguments: Any, frames: int) -> Any:
    common: dict[str, Any] = {"frames_per_batch": frames, "total_frames": -1, "auto_register_policy_transforms": False}
    each = max(1, arguments.num_envs // max(1, arguments.processes))
    if not arguments.processes:
        return Collector(partial(_batched, env, arguments.num_envs), actor, **common)
    return MultiSyncCollector([partial(_batched, env, each)] * arguments.processes, actor, cat_results=0, **common)


def _rows(data: TensorDictBase, env: str) -> TensorDictBase:
    """A row for each agent that acted, with what the loss reads."""
    names = ["observation", "action", "sample_log_prob", "advantage", "value_target"]
    names += ["action_mask"] if env == "connect-four" else []
    group = data[_GROUP].select(*names)
    group.batch_size = group["action"].shape
    rows = group.reshape(-1)
    return rows[data[_GROUP, "mask"].reshape(-1)] if env == "connect-four" else rows


def main() -> None:
    parser = make_parser(__doc__ or "", tuple(_SIZES))
    parser.add_argument("--num-envs", type=int, default=16, help="environments in all")
    parser.add_argument("--processes", type=int, default=2, help="collectors beside this process; 0: it is one itself")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the learner")
    arguments = parser.parse_args()
    env, is_turns = arguments.env, arguments.env == "connect-four"
    if arguments.num_envs % max(1, arguments.processes):
        parser.error("--processes must divide --num-envs")
    batch, minibatch, epochs = (8192, 1024, 2) if is_turns else (3072, 384, 4)
    torch.set_num_threads(arguments.threads)
    actor, critic = _networks(env)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.04 if is_turns else 0.01,
        critic_coeff=0.5,
        normalize_advantage=True,
    )
    keys = {name: (_GROUP, name) for name in ("advantage", "value_target")} | {"value": (_GROUP, "state_value")}
    gae.set_keys(**keys, **{name: (_GROUP, name) for name in ("reward", "done", "terminated")})
    loss.set_keys(**keys, action=(_GROUP, "action"), sample_log_prob=(_GROUP, "sample_log_prob"))
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3 if is_turns else 3e-4, eps=1e-5)
    collector = _collector(env, actor, arguments, batch if is_turns else batch // _AGENTS)
    window, steps = Window(arguments.seconds, arguments.warm_up), 0
    try:
        for data in collector:
            with torch.no_grad():
                gae(data)
            rows = _rows(data, env)
            for _ in range(epochs):
                for part in torch.randperm(len(rows)).split(minibatch):
                    losses = loss(TensorDict({_GROUP: rows[part]}, len(part)))
                    optimiser.zero_grad()
                    (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                    nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
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
        frameskip=1,
        precision="fp32",
        config={key: getattr(arguments, key) for key in ("num_envs", "processes", "threads")},
        packages=("torchrl", "torch", "pettingzoo", "mpe2"),
    )


if __name__ == "__main__":
    main()

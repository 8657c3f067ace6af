"""PPO in the manner of CleanRL's ``ppo_atari_envpool.py``: one process, synchronous, EnvPool's Breakout in C++.

Written for this benchmark, with what makes such a loop fast on a CPU: uint8 observations until the network, the
division by 255 folded into the first convolution, micro-batches that fit the cache, and the precision and memory
format that are fastest on this machine, found by a short measurement at the start (``--precision auto``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import envpool
import numpy as np
import torch
from networks import PRECISIONS, ActorCritic, Precision, least_seconds, nature_net
from torch import Tensor, nn
from window import Window, make_parser, report

_GAMMA, _LAMBDA, _CLIP, _ENTROPY, _VALUE, _MAX_NORM = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5


class Update(NamedTuple):
    """One minibatch, flat."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor


def learn(net: ActorCritic, optimiser: torch.optim.Optimizer, data: Update, micro_batch: int) -> None:
    """One SGD step on one minibatch, its gradient summed over micro-batches."""
    size = len(data.action)
    advantage = (data.advantage - data.advantage.mean()) / (data.advantage.std() + 1e-8)
    optimiser.zero_grad(set_to_none=True)
    for i in range(0, size, micro_batch):
        part = slice(i, i + micro_batch)
        logits, value = net(data.observation[part])
        log_probs = logits.log_softmax(-1)
        log_prob = log_probs.gather(1, data.action[part, None]).squeeze(1)
        ratio = (log_prob - data.log_prob[part]).exp()
        a = advantage[part]
        policy_loss = -torch.minimum(ratio * a, ratio.clamp(1 - _CLIP, 1 + _CLIP) * a).sum()
        value_loss = 0.5 * (value - data.target[part]).square().sum()
        entropy = -(log_probs.exp() * log_probs).sum()
        ((policy_loss + _VALUE * value_loss - _ENTROPY * entropy) / size).backward()
    nn.utils.clip_grad_norm_(net.parameters(), _MAX_NORM, foreach=True)
    optimiser.step()


def advantages(reward: Tensor, value: Tensor, ended: Tensor) -> Tensor:
    """Generalised advantage estimation; ``ended[t]`` is whether the episode ended with ``reward[t]``."""
    result = torch.zeros_like(reward)
    last = torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        going = 1.0 - ended[t]
        last = reward[t] + _GAMMA * going * value[t + 1] - value[t] + _GAMMA * _LAMBDA * going * last
        result[t] = last
    return result


def fastest(num_actions: int, num_envs: int, minibatch: int) -> tuple[Precision, int]:
    """The precision and micro-batch with the least time for a sample through inference and learning."""
    best: tuple[float, Precision, int] | None = None
    images = torch.randint(0, 256, (minibatch, 4, 84, 84), dtype=torch.uint8)
    ones = torch.ones(minibatch)
    data = Update(images, torch.zeros(minibatch, dtype=torch.int64), -ones, torch.randn(minibatch), ones)
    for precision in PRECISIONS.values():
        net = nature_net(num_actions, precision)
        optimiser = torch.optim.Adam(net.parameters(), fused=True)
        with torch.inference_mode():
            inference = least_seconds(lambda net=net: net(images[:num_envs])) / num_envs  # type: ignore[misc]  # a lambda with defaults
        for micro_batch in (64, minibatch):
            step = least_seconds(lambda n=net, o=optimiser, m=micro_batch: learn(n, o, data, m))  # type: ignore[misc]  # a lambda with defaults
            total = inference + step / minibatch
            if best is None or total < best[0]:
                best = (total, precision, micro_batch)
    assert best is not None
    return best[1], best[2]


def train(arguments: Any, window: Window) -> dict[str, object]:
    """Trains until the window is full; returns what was configured."""
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    num_envs, minibatch = arguments.num_envs, 128
    num_steps = arguments.batch // num_envs
    envs = envpool.make_gymnasium(
        "Breakout-v5", num_envs=num_envs, num_threads=arguments.env_threads, seed=1, reward_clip=True
    )
    num_actions = int(envs.action_space.n)
    precision, micro_batch = fastest(num_actions, num_envs, minibatch)
    if arguments.precision != "auto":
        precision = PRECISIONS[arguments.precision]
    net = nature_net(num_actions, precision)
    optimiser = torch.optim.Adam(net.parameters(), lr=8e-4, eps=1e-5, fused=True)
    shape = (num_steps, num_envs)
    observations = torch.zeros((*shape, 4, 84, 84), dtype=torch.uint8)
    actions, log_probs = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    rewards, ended, valid = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    values = torch.zeros(num_steps + 1, num_envs)
    observation = torch.from_numpy(envs.reset()[0])
    resetting = np.zeros(num_envs, bool)
    steps = 0
    while not window.is_full:
        window.update(steps)
        with torch.inference_mode():
            for t in range(num_steps):
                observations[t] = observation
                logits, values[t] = net(observation)
                all_log_probs = logits.log_softmax(-1)
                noise = torch.empty_like(all_log_probs).exponential_().log_()
                action = (all_log_probs - noise).argmax(-1)
                actions[t] = action
                log_probs[t] = all_log_probs.gather(1, action[:, None]).squeeze(1)
                seen, reward, terminated, truncated, _ = envs.step(action.to(torch.int32).numpy())
                # EnvPool resets in the step after the end, whatever the action: that row is no transition.
                valid[t] = torch.from_numpy(~resetting)
                resetting = terminated | truncated
                rewards[t] = torch.from_numpy(reward)
                ended[t] = torch.from_numpy(resetting.astype(np.float32))
                observation = torch.from_numpy(seen)
            values[num_steps] = net(observation)[1]
            advantage = advantages(rewards, values, ended)
            target = advantage + values[:-1]
        kept = valid.flatten().nonzero().squeeze(1)
        steps += len(kept)
        order = kept[torch.randperm(len(kept))]
        for i in range(0, len(order), minibatch):
            rows = order[i : i + minibatch]
            flat = (observations.flatten(0, 1), actions.flatten(), log_probs.flatten())
            learn(
                net, optimiser, Update(*(x[rows] for x in (*flat, advantage.flatten(), target.flatten()))), micro_batch
            )
    envs.close()
    return {
        "num_envs": num_envs,
        "num_steps": num_steps,
        "minibatch": minibatch,
        "micro_batch": micro_batch,
        "epochs": 1,
        "threads": arguments.threads,
        "env_threads": arguments.env_threads,
        "precision": precision.name,
    }


def main() -> None:
    parser = make_parser(__doc__ or "", ("atari",))
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--env-threads", type=int, default=2)
    parser.add_argument("--precision", choices=("auto", *PRECISIONS), default="auto")
    arguments = parser.parse_args()
    if arguments.batch % arguments.num_envs:
        parser.error(f"--num-envs {arguments.num_envs} must divide --batch {arguments.batch}")
    window = Window(arguments.seconds, arguments.warm_up)
    config = train(arguments, window)
    report(
        "cleanrl-style on envpool",
        arguments.env,
        window.steps_per_second,
        frameskip=4,
        precision=str(config.pop("precision")),
        config=config,
        packages=("envpool", "torch"),
    )


if __name__ == "__main__":
    main()

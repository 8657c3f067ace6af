"""DQN in one file, in the manner of CleanRL's ``dqn.py``, with a prioritised replay.

``python examples/replay_in_cleanrl.py --total-steps 50000`` balances CartPole in about a minute. What has to do with
the replay is marked; everything else is what it would be with any other one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rollmill.replay import PrioritizedReplay

NUM_ENVS = 4
GAMMA = 0.99
BATCH = 128
BUFFER = 50_000
LEARNING_RATE = 1e-3
LEARNING_STARTS = 1000  # environment steps, as are the next three
TRAIN_EVERY = 4
TARGET_EVERY = 500
EXPLORE_FOR = 0.3  # of all steps, from always to EXPLORE_AT_LEAST
EXPLORE_AT_LEAST = 0.05
BETA = (0.4, 1.0)  # in the beginning, in the end


def make_network(num_inputs: int, num_actions: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_actions)
    )


def train(
    env_id: str = "CartPole-v1",
    total_steps: int = 50_000,
    seed: int = 0,
    make_replay: Callable[..., Any] = PrioritizedReplay,
) -> dict[str, Any]:
    """Trains; returns the episodes' returns and the seconds it took."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    envs = gym.make_vec(env_id, num_envs=NUM_ENVS, vectorization_mode="sync")
    num_inputs, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    network, target = (make_network(num_inputs, num_actions) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)

    # Replay: what a step is made of. The next observation is no field: it is the observation of the step after.
    replay = make_replay(
        BUFFER,
        {"obs": ((num_inputs,), "float32"), "action": ((), "int64"), "reward": ((), "float32")},
        num_envs=NUM_ENVS,
        discount=GAMMA,
        seed=seed,
    )

    returns: list[float] = []
    running = np.zeros(NUM_ENVS)
    obs, _ = envs.reset(seed=seed)
    is_over = np.zeros(NUM_ENVS, bool)
    begin = time.perf_counter()
    for step in range(0, total_steps, NUM_ENVS):
        explore = max(1 - step / (EXPLORE_FOR * total_steps) * (1 - EXPLORE_AT_LEAST), EXPLORE_AT_LEAST)
        with torch.no_grad():
            action = network(torch.from_numpy(obs)).argmax(1).numpy()
        action = np.where(random.random(NUM_ENVS) < explore, random.integers(num_actions, size=NUM_ENVS), action)
        next_obs, reward, terminated, truncated, _ = envs.step(action)

        # Replay: an environment that was over was reset by this step, which is none to learn from.
        replay.add(
            obs=obs,
            action=action,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            next_obs=next_obs,
            valid=~is_over,
        )
        running = np.where(is_over, 0.0, running + reward)
        is_over = terminated | truncated
        returns += running[is_over].tolist()
        obs = next_obs

        if step >= LEARNING_STARTS and step % TRAIN_EVERY == 0:
            # Replay: a batch, its weights in the loss, and its errors back.
            batch = replay.sample(BATCH, beta=BETA[0] + (BETA[1] - BETA[0]) * step / total_steps)
            with torch.no_grad():
                value = target(torch.from_numpy(batch["next_obs"])).max(1).values
                aim = torch.from_numpy(batch["reward"]) + torch.from_numpy(batch["discount"]) * value
            chosen = network(torch.from_numpy(batch["obs"])).gather(1, torch.from_numpy(batch["action"])[:, None])
            error = aim - chosen[:, 0]
            loss = (torch.from_numpy(batch.weights) * error.square()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            replay.update_priorities(batch, error.detach().numpy())
        if step % TARGET_EVERY < NUM_ENVS:
            target.load_state_dict(network.state_dict())
    envs.close()
    return {"returns": returns, "seconds": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = train(given.env, given.total_steps, given.seed)
    last = result["returns"][-20:]
    print(f"return {np.mean(last):.1f} over the last {len(last)} episodes, {result['seconds']:.0f} s")


if __name__ == "__main__":
    main()

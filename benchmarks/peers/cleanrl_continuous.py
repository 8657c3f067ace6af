"""SAC and TD3 in the manner of CleanRL's ``sac_continuous_action.py`` and ``td3_continuous_action.py``.

Written for this benchmark with CleanRL's hyperparameters: one environment, one process, PyTorch without tricks.
Learning starts after ``--learning-starts`` steps, because this measures the speed with learning.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from window import Window, make_parser, report

_GAMMA, _TAU, _BATCH, _CAPACITY, _POLICY_FREQUENCY = 0.99, 0.005, 256, 1_000_000, 2
_EXPLORATION_NOISE, _POLICY_NOISE, _NOISE_CLIP = 0.1, 0.2, 0.5
_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0
# CleanRL's TD3 has 256 and 256; these are the paper's, as in Rollmill's preset and in Stable-Baselines3.
_SAC_HIDDEN, _TD3_HIDDEN = (256, 256), (400, 300)


class _Ring:
    """Transitions in float32."""

    def __init__(self, capacity: int, obs_size: int, action_size: int) -> None:
        self._obs = np.zeros((capacity, obs_size), np.float32)
        self._action = np.zeros((capacity, action_size), np.float32)
        self._reward = np.zeros(capacity, np.float32)
        self._next_obs = np.zeros((capacity, obs_size), np.float32)
        self._terminated = np.zeros(capacity, np.float32)
        self._capacity, self._count = capacity, 0

    def add(self, *fields: Any) -> None:
        slot = self._count % self._capacity
        for ring, value in zip(self._rings, fields, strict=True):
            ring[slot] = value
        self._count += 1

    def sample(self, batch: int) -> tuple[Tensor, ...]:
        # NumPy's global generator, which is the one that CleanRL seeds and draws from.
        slots = np.random.randint(0, min(self._count, self._capacity), batch)  # noqa: NPY002
        return tuple(torch.from_numpy(ring[slots]) for ring in self._rings)

    @property
    def _rings(self) -> tuple[np.ndarray, ...]:
        return self._obs, self._action, self._reward, self._next_obs, self._terminated


class _Critic(nn.Module):
    def __init__(self, obs_size: int, action_size: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_size + action_size, hidden[0])
        self.fc2 = nn.Linear(*hidden)
        self.fc3 = nn.Linear(hidden[1], 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.cat([obs, action], 1)))
        return self.fc3(F.relu(self.fc2(x))).squeeze(1)


class _Actor(nn.Module):
    def __init__(
        self, obs_size: int, action_space: gymnasium.spaces.Box, hidden: tuple[int, int], outputs: int
    ) -> None:
        super().__init__()
        size = int(np.prod(action_space.shape))
        self.fc1 = nn.Linear(obs_size, hidden[0])
        self.fc2 = nn.Linear(*hidden)
        self.heads = nn.ModuleList(nn.Linear(hidden[1], size) for _ in range(outputs))
        self.register_buffer("scale", torch.from_numpy((action_space.high - action_space.low) / 2))
        self.register_buffer("bias", torch.from_numpy((action_space.high + action_space.low) / 2))

    def features(self, obs: Tensor) -> Tensor:
        return F.relu(self.fc2(F.relu(self.fc1(obs))))


class _DeterministicActor(_Actor):
    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.heads[0](self.features(obs))) * self.scale + self.bias


class _GaussianActor(_Actor):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-probability."""
        x = self.features(obs)
        mean, log_std = self.heads[0](x), torch.tanh(self.heads[1](x))
        log_std = _LOG_STD_MIN + 0.5 * (_LOG_STD_MAX - _LOG_STD_MIN) * (log_std + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale + self.bias, log_prob.sum(1)


def _follow(target: nn.Module, net: nn.Module) -> None:
    for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
        slow.data.copy_(_TAU * fast.data + (1 - _TAU) * slow.data)


class _Agent(Protocol):
    def act(self, obs: np.ndarray) -> np.ndarray: ...

    def learn(self, batch: tuple[Tensor, ...], steps: int) -> None: ...


class _Sac:
    def __init__(self, obs_size: int, space: gymnasium.spaces.Box) -> None:
        action_size = int(np.prod(space.shape))
        self._actor = _GaussianActor(obs_size, space, _SAC_HIDDEN, 2)
        self._critics = nn.ModuleList(_Critic(obs_size, action_size, _SAC_HIDDEN) for _ in range(2))
        self._targets = deepcopy(self._critics)
        self._critic_optimiser = torch.optim.Adam(self._critics.parameters(), lr=1e-3)
        self._actor_optimiser = torch.optim.Adam(self._actor.parameters(), lr=3e-4)
        self._wanted_entropy = -float(action_size)
        self._log_alpha = torch.zeros(1, requires_grad=True)
        self._alpha_optimiser = torch.optim.Adam([self._log_alpha], lr=1e-3)
        self._alpha = 1.0

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._actor(torch.from_numpy(obs)[None])[0][0].numpy()

    def learn(self, batch: tuple[Tensor, ...], steps: int) -> None:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            next_action, next_log_prob = self._actor(next_obs)
            least = torch.min(*(critic(next_obs, next_action) for critic in self._targets))
            target = reward + (1 - terminated) * _GAMMA * (least - self._alpha * next_log_prob)
        loss = sum(F.mse_loss(critic(obs, action), target) for critic in self._critics)
        self._critic_optimiser.zero_grad()
        loss.backward()
        self._critic_optimiser.step()
        if steps % _POLICY_FREQUENCY == 0:
            for _ in range(_POLICY_FREQUENCY):  # makes up for the delay
                self._improve(obs)
        for slow, fast in zip(self._targets, self._critics, strict=True):
            _follow(slow, fast)

    def _improve(self, obs: Tensor) -> None:
        action, log_prob = self._actor(obs)
        least = torch.min(*(critic(obs, action) for critic in self._critics))
        actor_loss = (self._alpha * log_prob - least).mean()
        self._actor_optimiser.zero_grad()
        actor_loss.backward()
        self._actor_optimiser.step()
        with torch.no_grad():
            _, log_prob = self._actor(obs)
        alpha_loss = (-self._log_alpha.exp() * (log_prob + self._wanted_entropy)).mean()
        self._alpha_optimiser.zero_grad()
        alpha_loss.backward()
        self._alpha_optimiser.step()
        self._alpha = self._log_alpha.exp().item()


class _Td3:
    def __init__(self, obs_size: int, space: gymnasium.spaces.Box) -> None:
        action_size = int(np.prod(space.shape))
        self._low, self._high = float(space.low[0]), float(space.high[0])
        self._actor = _DeterministicActor(obs_size, space, _TD3_HIDDEN, 1)
        self._critics = nn.ModuleList(_Critic(obs_size, action_size, _TD3_HIDDEN) for _ in range(2))
        self._actor_target, self._targets = deepcopy(self._actor), deepcopy(self._critics)
        self._critic_optimiser = torch.optim.Adam(self._critics.parameters(), lr=3e-4)
        self._actor_optimiser = torch.optim.Adam(self._actor.parameters(), lr=3e-4)

    def act(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            action = self._actor(torch.from_numpy(obs)[None])[0]
            action += torch.normal(0.0, self._actor.scale * _EXPLORATION_NOISE)
        return action.numpy().clip(self._low, self._high)

    def learn(self, batch: tuple[Tensor, ...], steps: int) -> None:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            noise = (torch.randn_like(action) * _POLICY_NOISE).clamp(-_NOISE_CLIP, _NOISE_CLIP) * self._actor.scale
            next_action = (self._actor_target(next_obs) + noise).clamp(self._low, self._high)
            least = torch.min(*(critic(next_obs, next_action) for critic in self._targets))
            target = reward + (1 - terminated) * _GAMMA * least
        loss = sum(F.mse_loss(critic(obs, action), target) for critic in self._critics)
        self._critic_optimiser.zero_grad()
        loss.backward()
        self._critic_optimiser.step()
        if steps % _POLICY_FREQUENCY:
            return
        actor_loss = -self._critics[0](obs, self._actor(obs)).mean()
        self._actor_optimiser.zero_grad()
        actor_loss.backward()
        self._actor_optimiser.step()
        _follow(self._actor_target, self._actor)
        for slow, fast in zip(self._targets, self._critics, strict=True):
            _follow(slow, fast)


def train(arguments: Any, window: Window) -> None:
    """Trains until the window is full."""
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    env = gymnasium.make("HalfCheetah-v5")
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert env.observation_space.shape is not None
    obs_size = env.observation_space.shape[0]
    agent: _Agent = {"halfcheetah-sac": _Sac, "halfcheetah-td3": _Td3}[arguments.env](obs_size, space)
    ring = _Ring(_CAPACITY, obs_size, int(np.prod(space.shape)))
    obs = env.reset(seed=1)[0].astype(np.float32)
    steps = 0
    while not window.is_full:
        learns = steps > arguments.learning_starts
        if learns and steps % _POLICY_FREQUENCY == 0:
            window.update(steps)
        action = agent.act(obs) if learns else space.sample()
        seen, reward, terminated, truncated, _ = env.step(action)
        next_obs = seen.astype(np.float32)
        ring.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0].astype(np.float32) if terminated or truncated else next_obs
        if learns:
            agent.learn(ring.sample(_BATCH), steps)
        steps += 1
    env.close()


def main() -> None:
    parser = make_parser(__doc__ or "", ("halfcheetah-sac", "halfcheetah-td3"))
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps")
    arguments = parser.parse_args()
    window = Window(arguments.seconds, arguments.warm_up)
    train(arguments, window)
    report(
        "cleanrl-style",
        arguments.env,
        window.steps_per_second,
        frameskip=1,
        precision="fp32",
        config={"threads": arguments.threads, "batch_size": _BATCH, "policy_frequency": _POLICY_FREQUENCY},
        packages=("torch", "gymnasium", "mujoco"),
        steps_per_cpu_second=window.steps_per_cpu_second,
    )


if __name__ == "__main__":
    main()

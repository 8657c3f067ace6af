"""Exploration: epsilon-greedy choices, action noise, and initial uniformly random actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rollmill.algorithms.base import Explore
from rollmill.algorithms.off_policy_config import DeterministicConfig, QLearningConfig


def scheduled_epsilon(config: QLearningConfig, agent_steps: int, total_steps: int) -> float:
    """Linear from ``epsilon_start`` to ``epsilon_end``, then constant (Mnih et al. 2015, Methods)."""
    decay = config.epsilon_steps or config.epsilon_fraction * total_steps
    progress = min(1.0, agent_steps / decay) if decay else 1.0
    return config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start)


def ladder(rows: Tensor, num_rows: int, epsilon: float, alpha: float) -> Tensor:
    """Ape-X' epsilons, float32 ``[N]``: ``epsilon ** (1 + alpha * i / (num_rows - 1))`` for row i.

    Horgan et al. 2018, https://arxiv.org/abs/1803.00933, section 4.1. A single row gets ``epsilon``.

    Args:
        rows: int64 or float32 ``[N]``, i.
        num_rows: Rows of the run.
        epsilon: Epsilon of row 0, the largest.
        alpha: Determines the last row's epsilon, ``epsilon ** (1 + alpha)``.
    """
    return torch.exp(math.log(epsilon) * (1.0 + rows * (alpha / max(1, num_rows - 1))))


def epsilon_of(config: QLearningConfig, explore: Explore) -> Tensor | float:
    """Probability of a random choice: one for all rows, or ``[N]``."""
    if explore.agent_steps < config.random_steps:
        return 1.0
    if config.epsilon_kind == "ladder":
        rows = explore.rows if explore.rungs is None else explore.rungs
        return ladder(rows, explore.num_rows, config.ladder_epsilon, config.ladder_alpha)
    return scheduled_epsilon(config, explore.agent_steps, explore.total_steps)


def random_choices(allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one of the allowed choices, uniformly.

    Args:
        allowed: bool ``[..., n]``, at least one of n.
        generator: Generator on its device.

    Returns:
        int64 ``[...]``.
    """
    score = torch.rand(allowed.shape, generator=generator, device=allowed.device)
    return torch.where(allowed, score, -1.0).argmax(-1)


def epsilon_greedy(
    greedy: Tensor, allowed: Tensor, epsilon: Tensor | float, generator: torch.Generator | None
) -> Tensor:
    """Replace a row's whole action by a random one with probability epsilon.

    Args:
        greedy: int64 ``[N, K]``.
        allowed: bool ``[N, K, n]``.
        epsilon: ``[N]`` or one for all.
        generator: Generator on their device.

    Returns:
        int64 ``[N, K]``.
    """
    is_random = torch.rand(len(greedy), generator=generator, device=greedy.device) < epsilon
    return torch.where(is_random.unsqueeze(-1), random_choices(allowed, generator), greedy)


def uniform_actions(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw uniform numbers in [-1, 1], with the shape of ``like``."""
    return torch.rand(like.shape, generator=generator, device=like.device) * 2.0 - 1.0


class PinkNoise(nn.Module):
    """Standard normal noise whose power spectrum falls as 1/f over episodes of up to a few thousand steps.

    It is a sum of first-order autoregressive processes of equal variance, whose time constants are a factor of four
    apart (van der Ziel 1950, https://doi.org/10.1016/0031-8914(50)90078-4). Unlike noise from an inverse Fourier
    transform, it needs no episode length in advance. Each row's processes are in a non-persistent buffer and start from
    their stationary distribution in every episode, and where they are drawn for the first time.

    Args:
        size: C, numbers of an action.
    """

    TIME_CONSTANTS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # steps
    state: Tensor
    decay: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        decay = torch.exp(-1.0 / torch.tensor(self.TIME_CONSTANTS))
        self.register_buffer("decay", decay, persistent=False)
        self.register_buffer("state", torch.zeros(0, size, len(decay)), persistent=False)

    def forward(self, explore: Explore) -> Tensor:
        """Return the next noise of these rows, float32 ``[N, C]``."""
        if len(self.state) != explore.num_rows:
            # Rows may be within an episode, as after the first steps, whose actions are uniform.
            rows = (explore.num_rows, self.size, len(self.decay))
            self.state = torch.randn(rows, generator=explore.generator, device=self.decay.device)
        shape = (len(explore.rows), self.size, len(self.decay))
        normal = torch.randn(shape, generator=explore.generator, device=self.decay.device)
        following = self.state[explore.rows] * self.decay + normal * (1.0 - self.decay.square()).sqrt()
        x = torch.where(explore.reset[:, None, None], normal, following)
        self.state.index_copy_(0, explore.rows, x)
        noise: Tensor = x.sum(-1) / math.sqrt(len(self.decay))
        return noise


class ActionNoise(nn.Module):
    """Noise on deterministic actions, and initial uniformly random actions.

    Each row's Ornstein-Uhlenbeck process is in a non-persistent buffer, so every policy worker has its own. It starts
    at 0 in every episode and then follows, in steps of dt (Euler-Maruyama; Lillicrap et al. 2016, section 7)::

        x <- x - theta x dt + sigma sqrt(dt) N(0, 1)

    Args:
        size: C, continuous dimensions of an action.
        config: The configuration of the noise.
    """

    state: Tensor

    def __init__(self, size: int, config: DeterministicConfig) -> None:
        super().__init__()
        self.size = size
        self.config = config
        self.register_buffer("state", torch.zeros(0, size), persistent=False)
        self.pink = PinkNoise(size) if config.noise_kind == "pink" else None

    def forward(self, action: Tensor, explore: Explore) -> Tensor:
        """Add exploration to actions, float32 ``[N, C]`` in [-1, 1]."""
        config = self.config
        if explore.agent_steps < config.random_steps:
            return uniform_actions(action, explore.generator)
        if self.pink is not None:
            noise: Tensor = self.pink(explore)
            return (action + config.noise_std * noise).clamp_(-1.0, 1.0)
        normal = torch.randn(action.shape, generator=explore.generator, device=action.device)
        if config.noise_kind == "gaussian":
            return (action + config.noise_std * normal).clamp_(-1.0, 1.0)
        return (action + self._process(normal, explore)).clamp_(-1.0, 1.0)

    def _process(self, normal: Tensor, explore: Explore) -> Tensor:
        if len(self.state) != explore.num_rows:
            self.state = normal.new_zeros(explore.num_rows, self.size)
        config = self.config
        x = torch.where(explore.reset.unsqueeze(-1), 0.0, self.state[explore.rows])
        x = x * (1.0 - config.ou_theta * config.ou_dt) + (config.noise_std * math.sqrt(config.ou_dt)) * normal
        self.state.index_copy_(0, explore.rows, x)
        return x

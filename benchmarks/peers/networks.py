"""The networks of the PPO peers whose network is the user's: a shared torso, a policy head and a value head.

The arithmetic and memory format of the Nature CNN are those that are fastest on this machine (``fastest``), because a
user of these libraries can choose them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MINIBATCH = 128  # of Atari


class Precision(NamedTuple):
    dtype: torch.dtype
    memory_format: torch.memory_format

    @property
    def name(self) -> str:
        layout = "channels last" if self.memory_format == torch.channels_last else "channels first"
        return f"{'fp32' if self.dtype == torch.float32 else 'bf16 autocast'}, {layout}"


PRECISIONS = {
    "fp32-nchw": Precision(torch.float32, torch.contiguous_format),
    "fp32-nhwc": Precision(torch.float32, torch.channels_last),
    "bf16-nchw": Precision(torch.bfloat16, torch.contiguous_format),
    "bf16-nhwc": Precision(torch.bfloat16, torch.channels_last),
}


def _initialise(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class NatureTorso(nn.Module):
    """The Nature CNN without heads; the division by 255 is folded into the first convolution."""

    width = 512

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision
        self.conv1 = nn.Conv2d(4, 32, 8, 4)
        self.conv2 = nn.Conv2d(32, 64, 4, 2)
        self.conv3 = nn.Conv2d(64, 64, 3, 1)
        self.dense = nn.Linear(3136, self.width)
        for layer in (self.conv1, self.conv2, self.conv3, self.dense):
            _initialise(layer, 2**0.5)
        for module in (self.conv1, self.conv2, self.conv3):
            module.weight.data = module.weight.data.contiguous(memory_format=precision.memory_format)

    def forward(self, observation: Tensor) -> Tensor:
        """Pixels 0 to 255 of any dtype ``[N, 4, 84, 84]`` -> features ``[N, 512]``, float32."""
        x = observation.to(self._precision.dtype, memory_format=self._precision.memory_format)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._precision.dtype == torch.bfloat16):
            x = F.relu_(F.conv2d(x, self.conv1.weight * (1 / 255), self.conv1.bias, 4))
            x = F.relu_(self.conv3(F.relu_(self.conv2(x))))
            return F.relu_(self.dense(x.flatten(1))).float()


class TanhTorso(nn.Module):
    """Two layers of 64, as in Rollmill's preset of CartPole."""

    width = 64

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        for layer in (self.layers[0], self.layers[2]):
            _initialise(layer, 2**0.5)

    def forward(self, observation: Tensor) -> Tensor:
        """Float32 ``[N, inputs]`` -> features ``[N, 64]``."""
        return self.layers(observation)  # type: ignore[no-any-return]  # a module's call is Any


class ActorCritic(nn.Module):
    """A torso with heads for the logits and the value."""

    def __init__(self, torso: NatureTorso | TanhTorso, num_actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.actor = nn.Linear(torso.width, num_actions)
        self.critic = nn.Linear(torso.width, 1)
        _initialise(self.actor, 0.01)
        _initialise(self.critic, 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Observations ``[N, ...]`` -> logits ``[N, A]`` and value ``[N]``, float32."""
        features = self.torso(observation)
        return self.actor(features), self.critic(features).squeeze(-1)


def nature_net(num_actions: int, precision: Precision) -> ActorCritic:
    """The Nature CNN with heads: 1.69M parameters with four actions."""
    return ActorCritic(NatureTorso(precision), num_actions)


def make_network(env: str, precision: str) -> ActorCritic:
    """The network of ``cartpole``, or of ``atari`` (Breakout) in the precision of that name."""
    return nature_net(4, PRECISIONS[precision]) if env == "atari" else ActorCritic(TanhTorso(4), 2)


def least_seconds(function: Callable[[], object]) -> float:
    """The least of three calls, after one more."""
    function()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def fastest(env: str) -> str:
    """The name of the precision in which this machine computes the gradient of a minibatch fastest."""
    if env != "atari":
        return "fp32-nchw"
    images = torch.randint(0, 256, (MINIBATCH, 4, 84, 84), dtype=torch.uint8)

    def gradient(net: ActorCritic) -> None:
        logits, value = net(images)
        (logits.sum() + value.sum()).backward()

    seconds = {
        name: least_seconds(partial(gradient, nature_net(4, precision))) for name, precision in PRECISIONS.items()
    }
    return min(seconds, key=seconds.__getitem__)

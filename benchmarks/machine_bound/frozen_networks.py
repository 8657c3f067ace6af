"""Frozen kernels of inference and training (see :mod:`benchmarks.machine_bound.frozen_kernels`).

Images lie in memory in the network's own layout beforehand, as a gather can leave them; only their conversion to
floating point counts.

What was tried and left out, on a Cascade Lake core at 2.5 GHz (CPU-us a sample, Nature CNN, batch 64 unless said):
inference with ``torch.compile`` and frozen weights 238 against 273 in eager mode, but 25 s of compilation for each
shape, and weights change at every update; oneDNN with weights reordered in advance 311; ``to_mkldnn`` 320; weights kept
in bfloat16 824; convolution 1 as a 2x2 one after space-to-depth: equal, the rearrangement costs more. Inference in int8
(``torch.ao.quantization``, x86 engine, channels last) takes 70: left out because it is another policy than the one that
is learned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from benchmarks.machine_bound.frozen_kernels import Kernel, Variant

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["fp32", "bf16"]
Layout = Literal["channels_last", "nchw"]

_BUFFER = 1024  # samples that a kernel cycles through, so that its input does not stay in the core's own cache

_CONVOLUTIONS = {  # (channels, kernel, stride) of each
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al., 2015; then 512 units: 1.69M parameters
    "simplified": ((32, 8, 4), (64, 4, 2), (128, 3, 2)),  # Petrenko et al., 2020, figure A.1; then 512 units
}


def _encoder(kind: Literal["nature", "simplified"], shape: tuple[int, int, int]) -> nn.Sequential:
    import torch
    from torch import nn

    activation = nn.ReLU if kind == "nature" else nn.ELU
    layers: list[nn.Module] = []
    channels = shape[0]
    for out, kernel, stride in _CONVOLUTIONS[kind]:
        layers += [nn.Conv2d(channels, out, kernel, stride), activation(inplace=True)]
        channels = out
    layers.append(nn.Flatten())
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(flat, 512), activation(inplace=True))


def _encode(encoder: nn.Sequential, images: torch.Tensor) -> torch.Tensor:
    """``encoder(images / 255)``, the division folded into the first convolution's weights: no pass over the images."""
    import torch.nn.functional as F
    from torch import nn

    first = encoder[0]
    assert isinstance(first, nn.Conv2d)
    features = F.conv2d(images, first.weight * (1 / 255), first.bias, first.stride)
    for layer in list(encoder)[1:]:
        features = layer(features)
    return features


def _sample(outputs: torch.Tensor) -> None:
    """Draws actions from the logits (all columns but the last, the value) and their log-probabilities."""
    import torch

    log_probs = outputs[:, :-1].float().log_softmax(-1)
    actions = (log_probs - torch.empty_like(log_probs).exponential_().log_()).argmax(-1, keepdim=True)
    log_probs.gather(1, actions)


def _loss(outputs: torch.Tensor) -> torch.Tensor:
    """PPO's clipped objective with value loss and entropy, on made-up actions and advantages."""
    import torch

    outputs = outputs.float()
    log_probs = outputs[:, :-1].log_softmax(-1)
    ratio = (log_probs[:, 0] - log_probs[:, 0].detach()).exp()
    advantage = torch.ones_like(ratio)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return 0.5 * outputs[:, -1].square().mean() - surrogate - 0.003 * entropy


class _Trainer:
    """Backward pass of every micro-batch; norm clipping and Adam once in a minibatch."""

    def __init__(self, modules: nn.ModuleList, micro_batch: int, minibatch: int) -> None:
        import torch

        self._parameters = list(modules.parameters())
        self._optimiser = torch.optim.Adam(self._parameters, lr=1e-4, eps=1e-6, fused=True)
        self._every = max(1, minibatch // micro_batch)
        self._calls = 0

    def learn(self, loss: torch.Tensor) -> None:
        import torch

        (loss / self._every).backward()  # type: ignore[no-untyped-call]
        self._calls += 1
        if self._calls % self._every == 0:
            torch.nn.utils.clip_grad_norm_(self._parameters, 4.0, foreach=True)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)


def _micro_batches(sizes: tuple[int, ...], minibatch: int) -> tuple[int, ...]:
    """Those of ``sizes`` that divide the minibatch; or the whole minibatch, where none does."""
    return tuple(size for size in sizes if minibatch % size == 0) or (minibatch,)


def _convolutional(
    kind: Literal["nature", "simplified"],
    shape: tuple[int, int, int],
    num_actions: int,
    stage: Literal["inference", "train"],
    precision: Precision,
    layout: Layout,
    batch: int,
    minibatch: int,
    gru: bool,
) -> Kernel:
    """Inference or training of a convolutional network; with ``gru``, trained on sequences of 32 steps."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    encoder = _encoder(kind, shape)
    if layout == "channels_last":
        encoder = encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    head = nn.Linear(512, num_actions + 1)
    core = nn.GRU(512, 512)
    modules = nn.ModuleList([encoder, core, head] if gru else [encoder, head])
    images = torch.randint(0, 256, (_BUFFER, *shape), dtype=torch.uint8)
    if layout == "channels_last":
        images = images.contiguous(memory_format=torch.channels_last)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    steps = 32 if stage == "train" else 1
    state = torch.zeros(1, batch // steps, 512)
    trainer = _Trainer(modules, batch, minibatch)
    position = 0

    def forward() -> torch.Tensor:
        nonlocal position
        part = images[position : position + batch]
        position = (position + batch) % _BUFFER
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            features = _encode(encoder, part.to(dtype))
            if gru:
                features = core(features.view(steps, -1, 512), state)[0].view(batch, 512)
            return head(features)  # type: ignore[no-any-return]

    def infer() -> None:
        with torch.inference_mode():
            _sample(forward())

    def train() -> None:
        trainer.learn(_loss(forward()))

    return Kernel(batch, infer if stage == "inference" else train)


def _convolutional_variants(
    kind: Literal["nature", "simplified"],
    shape: tuple[int, int, int],
    num_actions: int,
    stage: Literal["inference", "train"],
    gru: bool,
    batches: tuple[int, ...],
    minibatch: int,
) -> list[Variant]:
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    layouts: tuple[Layout, ...] = ("channels_last", "nchw")
    return [
        Variant(
            f"{precision} {layout} batch {batch}",
            f"{precision} {layout}",
            partial(_convolutional, kind, shape, num_actions, stage, precision, layout, batch, minibatch, gru),
        )
        for precision in precisions
        for layout in layouts
        for batch in batches
    ]


def atari_inference(num_actions: int = 4) -> list[Variant]:
    """Nature CNN on ``[N, 4, 84, 84]`` uint8: conversion, forward pass, sampling, log-probabilities."""
    return _convolutional_variants("nature", (4, 84, 84), num_actions, "inference", False, (64, 32, 128), 0)


def atari_train(num_actions: int = 4, minibatch: int = 256) -> list[Variant]:
    """Nature CNN: conversion, forward, PPO loss, backward; norm clipping and Adam once in ``minibatch`` samples."""
    batches = _micro_batches((64, 128, 256), minibatch)
    return _convolutional_variants("nature", (4, 84, 84), num_actions, "train", False, batches, minibatch)


def vizdoom_inference(num_actions: int = 3) -> list[Variant]:
    """Sample Factory's simplified network with a GRU of 512 on ``[N, 3, 72, 128]`` uint8, one step."""
    return _convolutional_variants("simplified", (3, 72, 128), num_actions, "inference", True, (64, 32, 128), 0)


def _sequences(shape: tuple[int, int, int], num_actions: int, minibatch: int, part: int) -> Kernel:
    """Training of the network with a GRU: the encoder in parts, the core over the whole minibatch, in float32."""
    import torch
    import torch.nn.functional as F
    from benchmarks.machine_bound.frozen_gru import unroll
    from torch import nn

    torch.manual_seed(0)
    encoder = _encoder("simplified", shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    core, head = nn.GRU(512, 512), nn.Linear(512, num_actions + 1)
    weight_in, weight, bias_in, bias = core.parameters()
    images = torch.randint(0, 256, (minibatch, *shape), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    state = torch.zeros(minibatch // 32, 512)
    trainer = _Trainer(nn.ModuleList([encoder, core, head]), minibatch, minibatch)

    def train() -> None:
        features = torch.cat([_encode(encoder, images[i : i + part].float()) for i in range(0, minibatch, part)])
        gates = F.linear(features, weight_in, bias_in).view(32, -1, 3 * 512)
        outputs = unroll(gates, state, weight, bias)
        trainer.learn(_loss(head(outputs.view(minibatch, 512))))

    return Kernel(minibatch, train)


def vizdoom_train(num_actions: int = 3, minibatch: int = 512) -> list[Variant]:
    """The same network, unrolled over sequences of 32 steps; Adam once in ``minibatch`` samples, a multiple of 32."""
    batches = _micro_batches((128, 256, 512), minibatch)
    whole = [
        Variant(
            f"fp32 whole core, encoder {n}", "whole core", partial(_sequences, (3, 72, 128), num_actions, minibatch, n)
        )
        for n in batches
    ]
    return whole + _convolutional_variants("simplified", (3, 72, 128), num_actions, "train", True, batches, minibatch)


def _perceptrons(stage: Literal["inference", "train"], batch: int, minibatch: int) -> Kernel:
    """Two perceptrons of 64x64 tanh units on 4 numbers: the policy of 2 actions, and the value."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    def perceptron(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    actor, critic = perceptron(2), perceptron(1)
    observation = torch.rand(batch, 4)
    trainer = _Trainer(nn.ModuleList([actor, critic]), batch, minibatch)

    def infer() -> None:
        with torch.inference_mode():
            _sample(torch.cat([actor(observation), critic(observation)], 1))

    def train() -> None:
        trainer.learn(_loss(torch.cat([actor(observation), critic(observation)], 1)))

    return Kernel(batch, infer if stage == "inference" else train)


def cartpole_inference() -> list[Variant]:
    """64x64 tanh perceptrons for policy and value."""
    return [Variant(f"batch {n}", f"{n}", partial(_perceptrons, "inference", n, 0)) for n in (64, 256, 1024)]


def cartpole_train(minibatch: int = 256) -> list[Variant]:
    """64x64 tanh perceptrons: PPO loss, backward; norm clipping and Adam once in ``minibatch`` samples."""
    batches = _micro_batches((256, 1024, 4096), minibatch)
    return [Variant(f"batch {n}", f"{n}", partial(_perceptrons, "train", n, minibatch)) for n in batches]

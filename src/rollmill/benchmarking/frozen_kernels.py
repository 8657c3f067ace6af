"""Standalone kernels of the three stages (environment, inference, training): the yardstick of the machine's bound.

They are *frozen*: they import ``torch``, the simulators and nothing of ours, so that slowing a stage of Rollmill down
cannot make the bound lower and its efficiency higher. Each is the fastest way known to us to do one stage on one core
with one thread; where that depends on the processor (bfloat16 is 3 times slower than float32 on one without AVX512_BF16
or AMX, and 2 times faster with it) there are several variants and :mod:`rollmill.benchmarking.bound` takes the one that
is fastest on the machine at hand.

A catalogue is a function that returns the variants of one stage. A stage of another environment or model takes part by
naming a catalogue of its own, ``"package.module:function"``.

What was tried and left out, on a Cascade Lake core at 2.5 GHz (us a sample, Nature CNN, batch 64): ``torch.compile``
with freezing 238 against 273 in eager mode, but 25 s of compilation for each shape, and the weights that it froze
change at every update; oneDNN with weights reordered in advance 311; ``to_mkldnn`` 320; weights kept in bfloat16 824.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "Kernel",
    "Variant",
    "atari_env",
    "atari_inference",
    "atari_train",
    "cartpole_env",
    "cartpole_envpool_env",
    "cartpole_inference",
    "cartpole_train",
    "vizdoom_env",
    "vizdoom_inference",
    "vizdoom_train",
]

Precision = Literal["fp32", "bf16"]
Layout = Literal["channels_last", "nchw"]

_BUFFER = 1024  # samples that a kernel cycles through, so that its input does not stay in the core's own cache


class Kernel(NamedTuple):
    """One stage, built and ready.

    Attributes:
        samples: Agent steps that one call handles.
        run: The call.
    """

    samples: int
    run: Callable[[], None]


class Variant(NamedTuple):
    """One way to do a stage.

    Attributes:
        name: For messages; unique in its catalogue.
        family: Variants of one family differ in the batch size only; a family whose first member is slow is left out
            of the search.
        build: Builds the kernel, in the process that runs it.
    """

    name: str
    family: str
    build: Callable[[], Kernel]


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


def atari_env(game: str = "breakout") -> list[Variant]:
    """``ale_py.AtariVectorEnv``: 84x84 grey, 4 frames stacked, frameskip 4, one thread, random actions."""

    def build(num_envs: int) -> Kernel:
        from ale_py import AtariVectorEnv

        env = AtariVectorEnv(game, num_envs=num_envs, num_threads=1)
        num_actions = int(getattr(env.single_action_space, "n"))  # noqa: B009
        actions = np.random.default_rng(0).integers(0, num_actions, (997, num_envs))
        env.reset(seed=0)
        step = 0

        def run() -> None:
            nonlocal step
            env.step(actions[step % 997])
            step += 1

        return Kernel(num_envs, run)

    # 64 take 2 % less time a step than 32, but each takes 0.1 to 0.2 s to build and to reset.
    return [Variant("B=32", "ale", partial(build, 32))]


def vizdoom_env(scenario: str = "defend_the_center", frameskip: int = 4) -> list[Variant]:
    """ViZDoom's engine at 160x120 RGB, resized to 128x72, random actions: one engine, waited for."""

    def build() -> Kernel:
        import atexit
        import os
        import tempfile

        import cv2
        import vizdoom

        cv2.setNumThreads(1)
        game = vizdoom.DoomGame()
        game.load_config(os.path.join(vizdoom.scenarios_path, f"{scenario}.cfg"))
        game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_window_visible(False)
        game.set_mode(vizdoom.Mode.PLAYER)
        game.set_seed(0)
        settings = tempfile.TemporaryDirectory()  # the engine writes settings, and makes a folder where it is started
        os.chdir(settings.name)
        game.set_doom_config_path(os.path.join(settings.name, "vizdoom.ini"))
        game.init()
        atexit.register(settings.cleanup)
        atexit.register(game.close)  # runs first: the engine is a process of its own and would outlive this one
        buttons = game.get_available_buttons_size()
        actions = [[i == j for j in range(buttons)] for i in range(buttons)]
        choices = np.random.default_rng(0).integers(0, buttons, 997).tolist()
        into = np.empty((72, 128, 3), np.uint8)
        step = 0

        def run() -> None:
            nonlocal step
            game.make_action(actions[choices[step % 997]], frameskip)
            step += 1
            if game.is_episode_finished():
                game.new_episode()
            cv2.resize(game.get_state().screen_buffer, (128, 72), dst=into, interpolation=cv2.INTER_NEAREST)

        return Kernel(1, run)

    return [Variant("one engine", "engine", build)]


def cartpole_env() -> list[Variant]:
    """Gymnasium's ``CartPoleEnv`` in Python, without wrappers, time limit 500, 64 stepped one after another."""

    def build() -> Kernel:
        from gymnasium.envs.classic_control.cartpole import CartPoleEnv

        num_envs = 64
        envs = [CartPoleEnv() for _ in range(num_envs)]
        for seed, env in enumerate(envs):
            env.reset(seed=seed)
        steps = [env.step for env in envs]
        resets = [env.reset for env in envs]
        actions = np.random.default_rng(0).integers(0, 2, (997, num_envs)).tolist()
        observation = np.empty((num_envs, 4), np.float32)
        age = [0] * num_envs
        clock = 0

        def run() -> None:
            nonlocal clock
            chosen = actions[clock % 997]
            clock += 1
            for i in range(num_envs):
                state, _, terminated, _, _ = steps[i](chosen[i])  # type: ignore[no-untyped-call]
                age[i] += 1
                if terminated or age[i] >= 500:
                    state, _ = resets[i]()
                    age[i] = 0
                observation[i] = state

        return Kernel(num_envs, run)

    return [Variant("python x64", "python", build)]


def cartpole_envpool_env() -> list[Variant]:
    """EnvPool's CartPole in C++, one thread, random actions."""

    def build(num_envs: int) -> Kernel:
        import envpool

        env = envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1, seed=0)
        actions = np.random.default_rng(0).integers(0, 2, (97, num_envs)).astype(np.int32)
        env.reset()
        step = 0

        def run() -> None:
            nonlocal step
            env.step(actions[step % 97])
            step += 1

        return Kernel(num_envs, run)

    return [Variant(f"B={n}", "envpool", partial(build, n)) for n in (256, 1024)]


# ---------------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------------

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


def _as_input(images: torch.Tensor, precision: Precision, layout: Layout) -> torch.Tensor:
    import torch

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    return images.to(dtype, memory_format=memory_format)


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
    steps = 32 if stage == "train" else 1
    state = torch.zeros(1, batch // steps, 512)
    trainer = _Trainer(modules, batch, minibatch)
    position = 0

    def forward() -> torch.Tensor:
        nonlocal position
        part = images[position : position + batch]
        position = (position + batch) % _BUFFER
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            features = _encode(encoder, _as_input(part, precision, layout))
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


def vizdoom_train(num_actions: int = 3, minibatch: int = 2048) -> list[Variant]:
    """The same network, unrolled over sequences of 32 steps; Adam once in ``minibatch`` samples, a multiple of 32."""
    batches = _micro_batches((128, 256, 512), minibatch)
    return _convolutional_variants("simplified", (3, 72, 128), num_actions, "train", True, batches, minibatch)


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

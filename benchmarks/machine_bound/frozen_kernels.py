"""Standalone kernels of the three stages (environment, inference, training): the yardstick of the machine's bound.

They are *frozen*: they import ``torch``, the simulators and nothing of ours, so that slowing a stage of Rollmill down
cannot make the bound lower and its efficiency higher. Each is the fastest way known to us, when frozen, to do one
stage on one core with one thread; where that depends on the processor (bfloat16 is 3 times slower than float32 on one
without AVX512_BF16 or AMX, and 2 times faster with it) there are several variants and
:mod:`benchmarks.machine_bound.bound` takes the one that is fastest on the machine at hand.

A catalogue is a function that returns the variants of one stage. A stage of another environment or model takes part by
naming a catalogue of its own, ``"package.module:function"``.

On a Cascade Lake core at 2.5 GHz, in CPU-us a step at the least: EnvPool's Breakout 680, ALE's own vector environment
635.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np


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

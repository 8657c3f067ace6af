"""Environments and networks that go wrong, registered as a user would register his own: in a module of one's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rollmill import register_encoder, register_env


class Walk(gymnasium.Env[np.ndarray, int]):
    """Ten steps to the right end an episode with reward 1; ``fault`` says what goes wrong, and where.

    Those named "... at the mark" begin when the file ``mark`` is there. "slow and marked" leaves the id of its process
    in the folder ``mark`` once it is stepped.
    """

    observation_space = gymnasium.spaces.Box(-20.0, 20.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", after: int = 200, child: bool = False, mark: str = "") -> None:
        self.fault, self.after, self.mark = fault, after, Path(mark)
        self.steps = self.total = self.position = 0
        if fault == "constructor":
            raise RuntimeError("the constructor went wrong")
        if fault == "slow constructor" or (fault == "slow constructor at the mark" and self.mark.exists()):
            time.sleep(10_000)
        if fault == "exit 0 in the constructor":
            os._exit(0)
        # Like VizDoom's engine: a process of the environment's own, in a session of its own.
        self.child = subprocess.Popen(["sleep", "1000"], start_new_session=True) if child else None

    def _observe(self) -> np.ndarray:
        return np.array([self.position, self.steps, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = self.position = 0
        if self.fault == "reset" and self.total > self.after:
            raise ValueError("the reset went wrong")
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.total += 1
        self.position += 1 if action else -1
        if self.total == self.after:
            self._fail()
        if self.fault == "hang at the mark" and self.mark.exists():
            time.sleep(10_000)
        if self.fault in ("slow", "slow and marked"):
            time.sleep(0.01)
        if self.fault == "slow and marked":
            (self.mark / str(os.getpid())).touch()
        terminated = self.position >= 5
        observation = self._observe()
        if self.fault == "nan" and self.total > self.after:
            observation[0] = np.nan
        return observation, float(terminated), terminated, self.steps >= 30, {}

    def _fail(self) -> None:
        if self.fault in ("step", "step and close"):
            raise ZeroDivisionError("the step went wrong")
        if self.fault == "hang":
            time.sleep(10_000)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "exit 0":
            os._exit(0)
        if self.fault == "sys.exit":
            sys.exit()
        if self.fault == "interrupt":
            raise KeyboardInterrupt("not the user's")

    def close(self) -> None:
        if self.fault == "step and close" and self.total >= self.after:
            time.sleep(10_000)
        if self.child is not None:
            self.child.kill()
            self.child.wait()


class Unseeded(gymnasium.Env[np.ndarray, int]):
    """Draws from a generator of its own that no seed reaches."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.random.default_rng().normal(size=2).astype(np.float32), 0.0, False, False, {}


register_env("test/unseeded", Unseeded)
register_env("test/walk", Walk)
register_env("test/other_walk", Walk)


def _hanging(*, in_training: bool) -> Callable[..., Any]:
    def make(observation: Any, action: Any, config: Any) -> Any:
        import torch

        class Hanging(torch.nn.Module):
            output_size = 8

            def __init__(self) -> None:
                super().__init__()
                self.layer, self.calls = torch.nn.Linear(3, 8), 0

            def forward(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
                self.calls += torch.is_grad_enabled() == in_training
                if self.calls > 20:
                    time.sleep(10_000)
                return self.layer(next(iter(observation.values())))

        return Hanging()

    return make


register_encoder("test/hangs in training", _hanging(in_training=True))
register_encoder("test/hangs in inference", _hanging(in_training=False))


def _flushing(observation: Any, action: Any, config: Any) -> Any:
    """Fails in a process whose arithmetic keeps denormal numbers."""
    import torch

    class Flushing(torch.nn.Linear):
        output_size = 8

        def forward(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
            smallest = torch.full((8,), torch.finfo(torch.float32).tiny)
            if torch.count_nonzero(smallest * 0.5):
                raise ArithmeticError("denormal numbers are kept")
            return super().forward(next(iter(observation.values())))

    return Flushing(3, 8)


register_encoder("test/flushing", _flushing)


class Big(gymnasium.Env[np.ndarray, int]):
    """Shows pictures that no network has memory for."""

    action_space = gymnasium.spaces.Discrete(2)
    picture = np.broadcast_to(np.uint8(0), (6000, 6000, 3))

    def __init__(self) -> None:
        # Not with the class: its bounds are 432 MB, which every process that imports this module would write.
        self.observation_space = gymnasium.spaces.Box(0, 255, self.picture.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.picture, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.picture, 0.0, False, False, {}


register_env("test/big", Big)


def _greedy(*, where: str) -> Callable[..., Any]:
    def make(observation: Any, action: Any, config: Any) -> Any:
        import torch

        class Greedy(torch.nn.Module):
            output_size = 8

            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(3, 8)
                if where == "constructor":
                    torch.empty(1 << 50)

            def forward(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
                if where == "training" and torch.is_grad_enabled():
                    torch.empty(1 << 50)
                return self.layer(next(iter(observation.values())))

        return Greedy()

    return make


register_encoder("test/greedy in training", _greedy(where="training"))
register_encoder("test/greedy in its constructor", _greedy(where="constructor"))

# A run that is over in seconds.
TINY: Mapping[str, object] = {
    "env.imports": ("faulty_envs",),
    "num_envs": 8,
    "rollout_length": 8,
    "learner.batch_size": 128,
    "learner.epochs": 1,
    "learner.minibatches": 1,
    "learner.micro_batch": 32,
    "learner.precision": "fp32",
    "learner.channels_last": False,
    "inference.precision": "fp32",
    "rollout.num_workers": 2,
    "report_every_s": 0.2,
}

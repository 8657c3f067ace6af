"""Complete runs of an environment whose answer can be heard and not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollmill
from rollmill.envs.registry import register_env

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SAMPLES, RATE = 630, 22050
SMALL: dict[str, Any] = {
    "num_envs": 16,
    "rollout_length": 16,
    "learner.batch_size": 256,
    "learner.minibatches": 4,
    "learner.epochs": 2,
    "learner.learning_rate": 1e-3,
    "learner.discount": 0.0,
}


class Tones(gymnasium.Env[Any, int]):
    """One of two tones, of any phase and loudness and from any side; the button that goes with it pays 1/16."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, is_silent: bool = False) -> None:
        sound = gymnasium.spaces.Box(-32768, 32767, (2, SAMPLES), np.int16)
        self.observation_space = gymnasium.spaces.Dict(
            {"sound": sound, "clock": gymnasium.spaces.Box(0, 1, (1,), np.float32)}
        )
        self.is_silent = is_silent
        self.steps = self.tone = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.tone) / 16
        self.steps += 1
        return self.observation(), reward, self.steps == 16, False, {}

    def observation(self) -> dict[str, Any]:
        self.tone = int(self.np_random.integers(2))
        phase, loudness, side = self.np_random.uniform(0, (2 * np.pi, 1, 1))
        wave = np.sin(2 * np.pi * (440, 880)[self.tone] * np.arange(SAMPLES) / RATE + phase)
        sound = np.outer((side, 1 - side), 10 ** (2 + 2 * loudness) * wave).astype(np.int16)
        sound += self.np_random.integers(-2, 3, sound.shape, np.int16)
        return {
            "sound": np.zeros_like(sound) if self.is_silent else sound,
            "clock": np.array([self.steps / 16], np.float32),
        }


@pytest.fixture(autouse=True)
def tones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/tones", Tones)


def train(run_dir: Path, steps: int, **settings: Any) -> float:
    run = rollmill.train("test/tones", run_dir=run_dir, total_steps=steps, quiet=True, **{**SMALL, **settings})
    assert run.episode_return is not None
    return run.episode_return


@pytest.mark.slow
def test_what_is_heard_is_learned_and_what_is_not_is_not(tmp_path: Path) -> None:
    assert train(tmp_path / "heard", 24_000, target_return=0.92) > 0.9
    # The mean of 100 episodes of 16 guesses has a standard error of 0.0125.
    assert abs(train(tmp_path / "silent", 4_000, **{"env.kwargs": {"is_silent": True}}) - 0.5) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
def test_it_is_learned_in_every_precision(precision: str, tmp_path: Path) -> None:
    steps = 4_000 if precision == "fp64" else 6_000
    assert train(tmp_path / "run", steps, **{"regime": "lockstep", "learner.precision": precision}) > 0.6


@pytest.mark.slow
def test_it_is_learned_from_a_replay(tmp_path: Path) -> None:
    run = rollmill.train(
        "test/tones",
        algo="dqn",
        run_dir=tmp_path / "run",
        quiet=True,
        **{
            "total_steps": 3_000,
            "num_envs": 8,
            "learner.batch_size": 32,
            "learner.discount": 0.0,
            "learner.learning_rate": 1e-3,
            "replay.capacity": 4_000,
            "replay.min_size": 300,
        },
    )
    assert run.episode_return is not None
    assert run.episode_return > 0.6

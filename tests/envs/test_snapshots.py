"""Groups of environments that are saved, and go on elsewhere as if nothing had happened."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import Array, ObservationView, OutcomeView, SavableGroup
from rollmill.specs import EnvSpec


def views(spec: EnvSpec, rows: int) -> tuple[ObservationView, OutcomeView]:
    observation = {name: np.zeros((rows, *item.shape), item.dtype) for name, item in spec.observation.items()}
    flags = [np.zeros(rows, bool) for _ in range(4)]
    outcome = OutcomeView(np.zeros(rows, np.float32), *flags[:3], np.zeros(rows, np.float32), np.zeros(rows, np.int32))
    return ObservationView(observation, None, flags[3]), outcome


def play(group: SavableGroup, spec: EnvSpec, steps: int, seed: int) -> list[Array]:
    into, outcome = views(spec, group.num_rows)
    random, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        group.step(*random_actions(spec.action, None, group.num_rows, random), into, outcome)
        seen += [a.copy() for a in (*into.observation.values(), into.reset, *outcome)]
    return seen


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("gym/CartPole-v1", {}), ("gym/FrozenLake-v1", {}), ("minigrid/MiniGrid-MemoryS7-v0", {})],
)
def test_a_restored_group_goes_on_as_the_saved_one(name: str, kwargs: dict[str, Any]) -> None:
    # A short limit, so that rows wait for their resets when the snapshot is taken.
    config = EnvConfig(name=name, kwargs=kwargs, max_episode_steps=7)
    spec = probe(config)
    group = make_group(config, 4, [1, 2, 3, 4])
    group.reset(views(spec, 4)[0])
    play(group, spec, 20, seed=0)
    for further in (0, 1, 5):
        play(group, spec, further, seed=further)
        saved = group.snapshot()
        assert saved is not None
        other = make_group(config, 4, [5, 6, 7, 8])
        other.restore(saved)
        for one, two in zip(play(group, spec, 30, seed=9), play(other, spec, 30, seed=9), strict=True):
            np.testing.assert_array_equal(one, two)
        other.close()
    group.close()


class Unpicklable(gymnasium.Env[np.ndarray, int]):
    """Holds what cannot be saved."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.simulator = open("/dev/null")  # noqa: SIM115  # held open, as a simulator is

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.simulator.close()


@pytest.mark.parametrize("name", ["test/unpicklable", "mujoco/HalfCheetah-v5", "atari/pong"])
def test_what_cannot_be_saved_faithfully_says_so(name: str) -> None:
    from rollmill import register_env

    if name == "test/unpicklable":
        register_env(name, Unpicklable)
    config = EnvConfig(name=name)
    spec = probe(config)
    group = make_group(config, 2, [1, 2])
    group.reset(views(spec, 2)[0])
    assert group.snapshot() is None
    group.close()

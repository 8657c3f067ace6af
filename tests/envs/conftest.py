"""A small environment with predictable transitions, and views to write into."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.views import ObservationView, OutcomeView
from rollmill.specs import ActionSpec, ArraySpec

DMLAB = str(Path(__file__).parent / "dmlab_stand_in")


class CountingEnv(gymnasium.Env):
    """Observes (seed, episode, step); seed and episode determine an episode's length and end."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self):
        self.seed, self.episode, self.count = -1, -1, 0

    @staticmethod
    def length(seed, episode):
        return 1 + (7 * seed + 3 * episode) % 5

    @staticmethod
    def reward(seed, episode, count, action):
        return seed + 10.0 * episode + 0.5 * count + 0.125 * action

    @staticmethod
    def terminates(seed, episode):
        return (seed + episode) % 2 == 0

    def _observation(self):
        return np.array([self.seed, self.episode, self.count], np.float32)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seed = seed
        self.episode += 1
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        reward = self.reward(self.seed, self.episode, self.count, action)
        self.count += 1
        end = self.count == self.length(self.seed, self.episode)
        terminated = end and self.terminates(self.seed, self.episode)
        return self._observation(), reward, terminated, end and not terminated, {}


def observation_view(specs, rows, mask_size=0):
    return ObservationView(
        {name: np.full((rows, *spec.shape), 77, spec.dtype) for name, spec in specs.items()},
        np.zeros((rows, mask_size), bool) if mask_size else None,
        np.zeros(rows, bool),
    )


def outcome_view(rows):
    # Poisoned, because every entry must be written at every step.
    return OutcomeView(
        np.full(rows, np.nan, np.float32),
        np.ones(rows, bool),
        np.ones(rows, bool),
        np.zeros(rows, bool),
        np.full(rows, -1.0, np.float32),
        np.full(rows, -1, np.int32),
    )


def random_actions(spec: ActionSpec, rows, rng, mask=None):
    """Draw uniform actions; for a single choice, among those that ``mask [B, n]`` allows."""
    if mask is not None and len(spec.categorical_sizes) == 1:
        return np.array([[rng.choice(np.flatnonzero(row))] for row in mask], np.int32), None
    discrete = [rng.integers(0, n, rows) for n in spec.categorical_sizes]
    return (
        np.stack(discrete, axis=1).astype(np.int32) if discrete else None,
        rng.standard_normal((rows, spec.num_continuous)).astype(np.float32) if spec.num_continuous else None,
    )


def run(group, specs, action, steps, mask_size=0, seed=0):
    """Return everything that a group writes in ``steps`` steps, stacked over time."""
    rng = np.random.default_rng(seed)
    into = observation_view(specs, group.num_rows, mask_size)
    group.reset(into)
    shown, outcomes, actions = [copy(into)], [], []
    for _ in range(steps):
        into, outcome = observation_view(specs, group.num_rows, mask_size), outcome_view(group.num_rows)
        chosen = random_actions(action, group.num_rows, rng, shown[-1].action_mask)
        group.step(*chosen, into, outcome)
        shown.append(copy(into))
        outcomes.append(outcome)
        actions.append(chosen)
    return SimpleNamespace(
        observation={name: np.stack([s.observation[name] for s in shown]) for name in specs},
        mask=np.stack([s.action_mask for s in shown]) if mask_size else None,
        reset=np.stack([s.reset for s in shown]),
        discrete=np.stack([d for d, _ in actions]) if actions[0][0] is not None else None,
        **{f: np.stack([getattr(o, f) for o in outcomes]) for f in OutcomeView._fields[:6]},
    )


def copy(view):
    mask = None if view.action_mask is None else view.action_mask.copy()
    return ObservationView({k: v.copy() for k, v in view.observation.items()}, mask, view.reset.copy())


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    monkeypatch.setattr("rollmill.envs.registry._registered", {})


@pytest.fixture(scope="session")
def harness():
    return SimpleNamespace(
        CountingEnv=CountingEnv,
        observation_view=observation_view,
        outcome_view=outcome_view,
        random_actions=random_actions,
        run=run,
        array=lambda *shape, dtype="float32": ArraySpec(shape=shape, dtype=dtype),
    )


@pytest.fixture(scope="session")
def dmlab_stand_in():
    """The stand-in for DeepMind Lab, loaded once, because :mod:`rollmill.envs.dmlab_env` keeps what it imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DMLAB)
        module = importlib.import_module("deepmind_lab")
        del sys.modules["deepmind_lab"]
        return module


@pytest.fixture
def lab(dmlab_stand_in, monkeypatch):
    """The class ``Lab`` of a stand-in for DeepMind Lab, which this process and those that it starts can import."""
    monkeypatch.syspath_prepend(DMLAB)
    monkeypatch.setitem(sys.modules, "deepmind_lab", dmlab_stand_in)
    dmlab_stand_in.Lab.made.clear()
    return dmlab_stand_in.Lab

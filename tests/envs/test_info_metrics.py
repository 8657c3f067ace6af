"""Every number that an environment gives in ``info["metrics"]`` is counted once, in all autoreset modes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmill.envs.info_metrics import EnvMetrics, InfoMetrics
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup

ROWS, STEPS = 6, 60
SEEDS = list(range(ROWS))


def metered(harness, given):
    """CountingEnv that gives metrics in some infos, and notes them in ``given``."""

    class Metered(harness.CountingEnv):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed)
            return observation, self._measure(info, resets=1)

        def step(self, action):
            *outcome, info = super().step(action)
            return (*outcome, self._measure(info, count=self.count, odd=np.bool_(self.count % 2)))

        def _measure(self, info, **numbers):
            if self.seed % 3:
                info["metrics"] = numbers
                given.append(numbers)
            return info

    return Metered


@pytest.mark.parametrize("kind", ["python", "next_step", "same_step", "disabled"])
def test_what_is_given_is_counted_once(kind, harness):
    given = []
    env = metered(harness, given)
    specs, action = observation_specs(env.observation_space), action_spec(env.action_space)
    if kind == "python":
        group = PythonGroup(env, num_envs=ROWS, seeds=SEEDS)
    else:
        mode = AutoresetMode[kind.upper()]
        group = VectorGroup(lambda seeds: SyncVectorEnv([env] * len(seeds), autoreset_mode=mode), seeds=SEEDS)
    harness.run(group, specs, action, STEPS)
    found = group.metrics.take()
    group.close()
    for name in ("resets", "count", "odd"):
        values = [float(numbers[name]) for numbers in given if name in numbers]
        assert found.sums[name] == (sum(values), len(values))
    assert set(found.sums) == {"resets", "count", "odd"}
    assert not found.refused
    assert group.metrics.take() == EnvMetrics({}, {}, {})


def test_what_is_no_number_is_refused_once_by_name():
    metrics = InfoMetrics()
    for _ in range(3):
        metrics.add({"good": 1, "text": "fast", "list": [1, 2], "nothing": None, 3: 4.0, "array": np.array(2.0)}, 0)
        metrics.add([("good", 1)], 0)
    found = metrics.take()
    assert found.sums == {"good": (3.0, 3), "array": (6.0, 3)}
    assert set(found.refused) == {"text", "list", "nothing", "3", ""}
    assert found.refused["text"] == "info['metrics']['text'] is 'fast' (str): give a number; it is left out"
    assert found.refused[""] == "info['metrics'] is [('good', 1)] (list): give a dict of names and numbers"
    metrics.add({"text": "slow"}, 0)
    assert metrics.take() == EnvMetrics({}, {}, {})


def test_lists_of_unequal_length_and_endless_numbers_are_refused():
    metrics = InfoMetrics()
    metrics.add_rows({"path": [[1], [1, 2]], "x": np.array([1.0, 2.0])}, 2)
    metrics.add({"n": 10**400}, 0)
    found = metrics.take()
    assert found.sums == {"x": (3.0, 2)}
    assert set(found.refused) == {"path", "n"}


def test_nan_says_that_there_is_nothing():
    metrics = InfoMetrics()
    metrics.add({"a": float("nan"), "b": np.float32("nan")}, 0)
    metrics.add_rows({"a": np.array([1.0, np.nan, 3.0]), "c": np.full(3, np.nan)}, 3)
    assert metrics.take().sums == {"a": (4.0, 2)}


def test_a_vector_without_masks_gives_every_row():
    metrics = InfoMetrics()
    metrics.add_rows({"x": np.array([1, 2, 3]), "scalar": 4.0, "wide": np.zeros((3, 2))}, 3)
    metrics.add_rows({"x": np.array([5, 9, 9]), "_x": np.array([True, False, False])}, 3)
    found = metrics.take()
    assert found.sums == {"x": (11.0, 4)}
    assert set(found.refused) == {"scalar", "wide"}


def test_a_mask_beside_python_objects_chooses_rows():
    metrics = InfoMetrics()
    values = np.array([None, 2, "text"], object)
    metrics.add_rows({"x": values, "_x": np.array([False, True, True])}, 3)
    found = metrics.take()
    assert found.sums == {"x": (2.0, 1)}
    assert set(found.refused) == {"x"}


def test_names_are_limited():
    metrics = InfoMetrics()
    for index in range(1000):
        metrics.add({f"room {index}": 1.0}, 0)
    found = metrics.take()
    assert len(found.sums) == 256
    assert list(found.refused.values()) == [
        "info['metrics'] has more than 256 names: 'room 256' and further ones are left out"
    ]


def test_parts_are_added_up():
    one, other = (
        EnvMetrics({"a": (1.0, 2)}, {"x": "why"}, {"p": (1.0, 1)}),
        EnvMetrics({"a": (3.0, 1), "b": (0.5, 1)}, {}, {"p": (2.0, 3)}),
    )
    assert EnvMetrics.merged([one, other]) == EnvMetrics({"a": (4.0, 3), "b": (0.5, 1)}, {"x": "why"}, {"p": (3.0, 4)})


def test_an_info_that_is_none_is_taken_as_before(harness):
    class Bare(harness.CountingEnv):
        def step(self, action):
            return (*super().step(action)[:4], None)

    specs, action = observation_specs(Bare.observation_space), action_spec(Bare.action_space)
    group = PythonGroup(Bare, num_envs=2, seeds=[0, 1])
    assert harness.run(group, specs, action, 10).valid.any()
    assert isinstance(Bare(), gymnasium.Env)

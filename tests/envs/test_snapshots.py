"""Groups of environments that are saved and restored."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import EzPickle
from gymnasium.vector import SyncVectorEnv

from rollmill import register_env
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnreadableSnapshot
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.repeating import repeats
from rollmill.envs.vector_group import VectorGroup
from rollmill.envs.views import Array, ObservationView, OutcomeView, SavableGroup, own_views
from rollmill.specs import EnvSpec


def play(group: SavableGroup, spec: EnvSpec, steps: int, seed: int) -> list[Array]:
    into, outcome = own_views(spec, group.num_rows)
    random, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        group.step(*random_actions(spec.action, None, group.num_rows, random), into, outcome)
        seen += [a.copy() for a in (*into.observation.values(), into.reset, *outcome[:6])]
    return seen


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("gym/CartPole-v1", {}), ("gym/FrozenLake-v1", {}), ("minigrid/MiniGrid-MemoryS7-v0", {})],
)
def test_restored_group_continues_like_the_saved_one(name: str, kwargs: dict[str, Any]) -> None:
    # A short limit, so that some rows wait for their reset at the snapshot.
    config = EnvConfig(name=name, kwargs=kwargs, max_episode_steps=7)
    spec = probe(config)
    group = make_group(config, 4, [1, 2, 3, 4])
    group.reset(own_views(spec, 4)[0])
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


Observation = np.ndarray[Any, np.dtype[np.float32]]


class Walk(gymnasium.Env[Observation, int]):
    """A well-behaved random walk; each class below violates one rule."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.position = 0.0

    def draw(self) -> float:
        return float(self.np_random.standard_normal())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.draw()
        return np.array([self.position], np.float32), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.position += self.draw() + action
        return np.array([self.position], np.float32), self.position, abs(self.position) > 9.0, False, {}


class Unpicklable(Walk):
    """Holds an object that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = open("/dev/null")  # noqa: SIM115  # stands for a simulator

    def close(self) -> None:
        self.simulator.close()


class ByArguments(EzPickle, Walk):
    """Is pickled as its constructor's arguments."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Walk.__init__(self)


class Faithful(EzPickle, Walk):
    """Inherits from EzPickle, but defines its own state."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Walk.__init__(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Unseeded(Walk):
    """Draws from its own generator, which is saved, but not seeded."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng()

    def draw(self) -> float:
        return float(self.random.standard_normal())


class Failing(Walk):
    """Raises when it is pickled."""

    def __getstate__(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("made", "is_saved"),
    [(Walk, True), (Unpicklable, False), (ByArguments, False), (Faithful, True), (Failing, False)],
)
def test_picklable_environments_are_saved(made: type[Walk], is_saved: bool) -> None:
    name = f"test/{made.__name__}"
    register_env(name, made)
    group = make_group(EnvConfig(name=name), 2, [1, 2])
    group.reset(own_views(probe(EnvConfig(name=name)), 2)[0])
    assert (group.snapshot() is not None) == is_saved
    group.close()


@pytest.mark.parametrize("name", ["mujoco/HalfCheetah-v5", "atari/pong", "envpool/CartPole-v1"])
def test_simulators_cannot_be_saved(name: str) -> None:
    config = EnvConfig(name=name)
    group = make_group(config, 2, [1, 2])
    group.reset(own_views(probe(config), 2)[0])
    assert group.snapshot() is None
    group.close()


@pytest.mark.parametrize(
    "name",
    ["mpe/simple_spread_v3", "pettingzoo/classic/connect_four_v3"],
)
def test_games_pickled_by_arguments_are_not_saved(name: str) -> None:
    config = EnvConfig(name=name)
    spec = probe(config)
    group = make_group(config, 1, [1], agents=spec.agents)
    group.reset(own_views(spec, group.num_rows)[0])
    assert group.snapshot() is None
    group.close()


def hopper_vector(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gymnasium.make, "Hopper-v5")] * num_envs)


def walk_vector(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([Walk] * num_envs)


@pytest.mark.parametrize(("made", "is_saved"), [(walk_vector, True), (hopper_vector, False)])
def test_vectors_of_environments_pickled_by_arguments_are_not_saved(made: Any, is_saved: bool) -> None:
    name = f"test/{made.__name__}"
    register_env(name, made, vector=True)
    config = EnvConfig(name=name)
    group = make_group(config, 2, [1, 2])
    group.reset(own_views(probe(config), 2)[0])
    assert (group.snapshot() is not None) == is_saved
    group.close()


class Careless(Walk):
    """Pickles, but cannot be unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.position = state["place"]


def test_unpickling_error_is_reported() -> None:
    register_env("test/careless", Careless)
    group = make_group(EnvConfig(name="test/careless"), 2, [1, 2])
    group.reset(own_views(probe(EnvConfig(name="test/careless")), 2)[0])
    saved = group.snapshot()
    assert saved is not None
    with pytest.raises(UnreadableSnapshot, match=r"KeyError: 'place'.*checkpoint\.save_environments=false"):
        group.restore(saved)


SCRIPT = """
import sys

import gymnasium
import numpy as np

from rollmill.envs.snapshots import restore_state, save_state


class Counter(gymnasium.Env):
    count = 0


class Group:
    pass


if __name__ == "__main__":
    group = Group()
    if sys.argv[1] == "save_state":
        group.env = Counter()
        group.env.count = 7
        open(sys.argv[2], "wb").write(save_state(group, ["env"]))
    else:
        restore_state(group, ["env"], open(sys.argv[2], "rb").read())
        assert group.env.count == 7
"""


def test_classes_of_a_script_are_found_by_a_resuming_program(tmp_path: Path) -> None:
    script, saved = tmp_path / "my_script.py", tmp_path / "saved"
    script.write_text(SCRIPT)

    def python(*words: str) -> None:
        subprocess.run([sys.executable, *words], check=True, cwd=tmp_path)

    python(str(script), "save_state", str(saved))
    python(str(script), "restore_state", str(saved))
    # Imports the script by its path, as the command line does.
    other = f"from rollmill.envs.user_code import import_user_code as i; i({str(script)!r})\n"
    other += "from rollmill.envs.snapshots import restore_state, save_state\nimport my_script, sys\n"
    other += f"group = my_script.Group(); restore_state(group, ['env'], open({str(saved)!r}, 'rb').read())\n"
    other += "assert group.env.count == 7 and type(group.env) is my_script.Counter\n"
    other += f"open({str(saved)!r}, 'wb').write(save_state(group, ['env']))\n"
    python("-c", other)
    # The reverse: the script resumes a run of the command line.
    python(str(script), "restore_state", str(saved))


class Global(Walk):
    """Draws from NumPy's global generator, which is not seeded."""

    def draw(self) -> float:
        return float(np.random.standard_normal())  # noqa: NPY002  # the subject of this test


class Masked(Walk):
    """Raises for forbidden actions; random actions do not respect the mask."""

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        raise ValueError("not allowed")


@pytest.mark.parametrize(("made", "found"), [(Walk, True), (Unseeded, False), (Global, False), (Masked, None)])
def test_probe_detects_whether_an_environment_repeats(made: type[Walk], found: bool | None) -> None:
    assert repeats(made()) is found


def test_repeating_is_tried_only_on_request() -> None:
    config = EnvConfig(name="gym/CartPole-v1")
    assert probe(config).repeats is None
    assert probe(config, tries_to_repeat=True).repeats is True
    assert probe(EnvConfig(name="mujoco/HalfCheetah-v5"), tries_to_repeat=True).repeats is True


class Walks(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Random walks in one array, with one generator."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    single_observation_space = Walk.observation_space
    single_action_space = Walk.action_space

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.positions = np.zeros(num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.positions = self.np_random.standard_normal(self.num_envs)
        self.ended = np.zeros(self.num_envs, bool)
        return self.positions[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        moved = self.positions + self.np_random.standard_normal(self.num_envs) + actions
        self.positions = np.where(self.ended, 0.0, moved)
        self.ended = ~self.ended & (abs(self.positions) > 4.0)
        none = np.zeros(self.num_envs, bool)
        return self.positions[:, None].astype(np.float32), self.positions, self.ended, none, {}


class Telling(Walks):
    """Gives reward terms in some steps."""

    steps = 0

    def step(self, actions: Any) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        result = super().step(actions)
        if self.steps % 2:
            result[4]["reward_terms"] = {"up": np.ones(self.num_envs)}
        return result


def test_a_restored_vector_need_not_give_its_reward_terms_at_once() -> None:
    group, other = (
        VectorGroup(lambda seeds: Telling(len(seeds)), seeds=[seed] * 4, reward_terms=["up"]) for seed in (1, 2)
    )
    into = ObservationView({"obs": np.zeros((4, 1), np.float32)}, None, np.zeros(4, bool))
    outcome = OutcomeView(
        np.zeros(4, np.float32),
        *np.zeros((3, 4), bool),
        np.zeros(4, np.float32),
        np.zeros(4, np.int32),
        np.zeros((4, 1), np.float32),
    )
    group.reset(into)
    group.step(np.zeros((4, 1), np.int32), None, into, outcome)
    saved = group.snapshot()
    assert saved is not None
    other.restore(saved)
    other.step(np.zeros((4, 1), np.int32), None, into, outcome)
    assert outcome.reward_terms is not None
    assert not outcome.reward_terms.any()


def test_a_users_vector_is_saved() -> None:
    register_env("test/walks", Walks, vector=True)
    config = EnvConfig(name="test/walks")
    spec = probe(config)
    group, other = (make_group(config, 4, [seed] * 4) for seed in (1, 2))
    group.reset(own_views(spec, 4)[0])
    other.reset(own_views(spec, 4)[0])
    for steps in (20, 1, 1, 1):
        # In some snapshots rows wait for their reset.
        play(group, spec, steps, seed=steps)
        saved = group.snapshot()
        assert saved is not None
        other.restore(saved)
        for one, two in zip(play(group, spec, 30, seed=9), play(other, spec, 30, seed=9), strict=True):
            np.testing.assert_array_equal(one, two)

"""MiniGrid's environments: what they show, and which ids there are."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs import minigrid
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import make_group, probe
from rollmill.envs.words import hashed_words

pytest.importorskip("minigrid")
EMPTY = "MiniGrid-Empty-5x5-v0"


def test_ids_are_those_of_minigrid_and_babyai():
    found = minigrid.ids()
    assert found == sorted(found)
    assert EMPTY in found
    assert any(id.startswith("BabyAI-") for id in found)
    assert {id.partition("-")[0] for id in found} == {"MiniGrid", "BabyAI"}
    assert minigrid.ids() == found


def test_an_unknown_id_suggests_similar_ones():
    minigrid.check_id(EMPTY)
    with pytest.raises(UnknownEnvironment, match=r"^MiniGrid has no environment 'MiniGrid-Empty-5x6-v0'; did you"):
        minigrid.check_id("MiniGrid-Empty-5x6-v0")
    with pytest.raises(UnknownEnvironment, match="MiniGrid has no environment 'CartPole-v1'"):
        minigrid.maker(EnvConfig(name="minigrid/CartPole-v1"))


@pytest.mark.parametrize("direction", [True, False])
def test_a_mission_that_never_changes_is_left_out_and_the_image_has_its_true_bounds(direction):
    minigrid.ids()  # Registers them.
    plain = gymnasium.make(EMPTY, disable_env_checker=True)
    env = minigrid.Numbers(gymnasium.make(EMPTY, disable_env_checker=True), direction)
    image = spaces.Box(0, 10, (7, 7, 3), np.uint8)
    expected = spaces.Dict(image=image, direction=spaces.Discrete(4)) if direction else image
    assert env.observation_space == expected
    whole, _ = plain.reset(seed=3)
    shown, _ = env.reset(seed=3)
    for _ in range(4):
        assert env.observation_space.contains(shown)
        np.testing.assert_array_equal(shown["image"] if direction else shown, whole["image"])
        if direction:
            assert set(shown) == {"image", "direction"}
            assert shown["direction"] == whole["direction"]
        shown, whole = env.step(1)[0], plain.step(1)[0]


@pytest.mark.parametrize("id", ["MiniGrid-GoToObject-6x6-N2-v0", "BabyAI-GoToObj-v0"])
def test_a_mission_that_changes_is_shown_as_hashed_words(id):
    minigrid.ids()
    plain = gymnasium.make(id, disable_env_checker=True)
    env = minigrid.Numbers(gymnasium.make(id, disable_env_checker=True))
    seen = set()
    for seed in range(8):
        whole, _ = plain.reset(seed=seed)
        shown, _ = env.reset(seed=seed)
        assert env.observation_space.contains(shown)
        np.testing.assert_array_equal(shown["mission"], hashed_words(whole["mission"]))
        np.testing.assert_array_equal(env.step(1)[0]["mission"], shown["mission"])
        seen.add(whole["mission"])
    assert len(seen) > 2
    assert set(minigrid.Numbers(plain, mission=False).observation_space) == {"image", "direction"}


def test_tasks_with_and_without_missions_share_a_network():
    names = ("minigrid/MiniGrid-GoToObject-6x6-N2-v0", f"minigrid/{EMPTY}")
    spec = probe(EnvConfig(name=",".join(names), tasks=names))
    assert set(spec.observation) == {"image", "direction", "mission"}


def test_presentation(harness):
    config = EnvConfig(name="minigrid/MiniGrid-MemoryS7-v0")
    assert {k: (v.shape, v.dtype, v.high) for k, v in probe(config).observation.items()} == {
        "image": ((7, 7, 3), "uint8", 10),
        "direction": ((4,), "float32", 1),
    }
    bare = EnvConfig(name=f"minigrid/{EMPTY}", kwargs={"direction": False})
    spec = probe(bare)
    assert list(spec.observation) == ["obs"]
    group = make_group(bare, 2, [0, 1])
    data = harness.run(group, spec.observation, spec.action, 4)
    group.close()
    assert data.observation["obs"].shape == (5, 2, 7, 7, 3)


def test_a_maker_takes_limits_and_arguments():
    made = minigrid.maker(EnvConfig(name=f"minigrid/{EMPTY}", max_episode_steps=9, frameskip=3))
    assert (made.frameskip, made.max_episode_steps, made.time_limit) == (3, 9, 9)
    assert made.vector is None
    sized = minigrid.maker(EnvConfig(name=f"minigrid/{EMPTY}", kwargs={"agent_view_size": 5, "direction": False}))
    assert (sized.frameskip, sized.max_episode_steps) == (1, None)
    assert sized.env().observation_space.shape == (5, 5, 3)

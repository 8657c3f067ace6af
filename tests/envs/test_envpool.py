"""EnvPool's environments: their ids and kinds, frames, time limits and seeds."""

import numpy as np
import pytest

from rollmill.envs import envpool
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import probe

pytest.importorskip("envpool")


@pytest.mark.parametrize(
    ("id", "kind"),
    [("Pong-v5", "atari"), ("CartPole-v1", "classic_control"), ("HalfCheetah-v4", "mujoco"), ("Basic-v1", "vizdoom")],
)
def test_an_id_has_the_kind_of_its_part_of_envpool(id, kind):
    assert envpool.kind(id) == kind


def test_ids_are_sorted_and_unknown_ones_suggest_similar_ones():
    found = envpool.ids()
    assert found == sorted(found)
    assert "Pong-v5" in found
    for refuses in (envpool.check_id, envpool.kind, lambda id: envpool.maker(EnvConfig(name=f"envpool/{id}"))):
        with pytest.raises(UnknownEnvironment, match=r"^EnvPool has no environment 'Pong-v4'; did .*'Pong-v5'"):
            refuses("Pong-v4")


@pytest.mark.parametrize(
    ("name", "settings", "frameskip", "max_episode_steps"),
    [
        ("Pong-v5", {}, 4, 27_000),
        ("Pong-v5", {"frameskip": 2, "max_episode_steps": 50}, 2, 50),
        ("Pong-v5", {"kwargs": {"frame_skip": 3}}, 3, 27_000),
        ("CartPole-v1", {}, 1, 500),
        ("CartPole-v1", {"max_episode_steps": 7}, 1, 7),
        ("HalfCheetah-v4", {}, 1, 1000),  # Its frame_skip is part of the task.
    ],
)
def test_frames_and_time_limits_are_known(name, settings, frameskip, max_episode_steps):
    made = envpool.maker(EnvConfig(name=f"envpool/{name}", **settings))
    assert (made.frameskip, made.max_episode_steps) == (frameskip, max_episode_steps)
    assert made.env is None
    assert made.prefer_vector


def test_atari_has_stacked_pictures():
    spec = probe(EnvConfig(name="envpool/Pong-v5"))
    assert (spec.frameskip, spec.observation["obs"].shape) == (4, (4, 84, 84))
    assert probe(EnvConfig(name="envpool/HalfCheetah-v4")).frameskip == 1


def test_a_time_limit_ends_episodes_of_the_pool():
    made = envpool.maker(EnvConfig(name="envpool/CartPole-v1", max_episode_steps=3))
    assert made.vector is not None
    pool = made.vector(2, 1, [0, 1])
    pool.reset()
    ends = [pool.step(np.array([step % 2] * 2, np.int32))[3].tolist() for step in range(3)]
    assert ends == [[False, False], [False, False], [True, True]]
    pool.close()


def test_seeds_decide_and_may_be_large():
    made = envpool.maker(EnvConfig(name="envpool/CartPole-v1"))
    assert made.vector is not None
    assert made.reset_seed(None, [1, 2]) is None  # The constructor has taken them.

    def first(*seeds):
        pool = made.vector(2, 1, seeds)
        shown = pool.reset()[0]
        pool.close()
        return shown

    large = 2**63 + 5
    np.testing.assert_array_equal(first(5, large), first(5, 5))
    assert (first(5, 6)[0] == first(5, 7)[0]).all()
    assert (first(5, 6)[1] != first(5, 7)[1]).any()

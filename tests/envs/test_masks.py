from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import InvalidActionMask
from rollmill.envs.factory import probe
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.registry import register_env
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup


class MaskedEnv(gymnasium.Env):
    """Allows one action, determined by the step; the mask is in ``info`` or in the observation."""

    def __init__(self, where="info", broken=None):
        self.where, self.broken = where, broken
        self.observation_space = spaces.Box(0, 99, (1,), np.float32)
        if where == "observation":
            self.observation_space = spaces.Dict(
                {"x": self.observation_space, "action_mask": spaces.Box(0, 1, (3,), np.int8)}
            )
        self.action_space = spaces.Discrete(3)

    def _show(self):
        mask = np.zeros(3, np.int8)
        mask[self.t % 3] = 1
        if self.broken == "empty" and self.t == 2:
            mask[:] = 0
        if self.broken == "size":
            mask = np.ones(4, np.int8)
        if self.t == 4:
            mask[:] = 0  # a finished game has no legal move
        x = np.array([self.t], np.float32)
        if self.where == "observation":
            return {"x": x, "action_mask": mask}, {}
        return x, {} if self.broken == "missing" and self.t == 2 else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._show()

    def step(self, action):
        self.t += 1
        observation, info = self._show()
        return observation, 0.0, self.t == 4, False, info


def group_of(kind, **kwargs):
    if kind == "python":
        return PythonGroup(lambda: MaskedEnv(**kwargs), num_envs=2, seeds=[0, 1])
    return VectorGroup(lambda seeds: SyncVectorEnv([lambda: MaskedEnv(**kwargs)] * 2), seeds=[0, 1])


@pytest.mark.parametrize("kind", ["python", "vector"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_masks_belong_to_their_observations(kind, where, harness):
    env = MaskedEnv(where)
    specs = observation_specs(env.observation_space)
    assert "action_mask" not in specs
    data = harness.run(group_of(kind, where=where), specs, action_spec(env.action_space), 12, mask_size=3)
    x = data.observation["x" if where == "observation" else "obs"][..., 0].astype(int)
    for t, row in np.ndindex(*x.shape):
        expected = np.arange(3) == x[t, row] % 3 if x[t, row] < 4 else np.ones(3)
        np.testing.assert_array_equal(data.mask[t, row], expected)


class Strict(MaskedEnv):
    """Raises for forbidden actions, as board games do."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        self.allowed = info["action_mask"]
        return observation, info

    def step(self, action):
        assert self.allowed[action], "a forbidden action was executed"
        result = super().step(action)
        self.allowed = result[4]["action_mask"]
        return result


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_forbidden_actions_are_never_executed(mode, harness):
    group = VectorGroup(lambda seeds: SyncVectorEnv([lambda: Strict("info")] * 2, autoreset_mode=mode), seeds=[0, 1])
    env = Strict("info")
    data = harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 40, mask_size=3)
    assert data.valid.sum() > 40


class Uneven(Strict):
    """Episodes of four steps, or of eight in the second environment, so that they end at different times."""

    made = 0

    def __init__(self):
        super().__init__("info")
        self.length = 4 * (1 + Uneven.made % 2)
        Uneven.made += 1

    def _show(self):
        mask = np.arange(3) == self.t % 3
        return np.array([self.t], np.float32), {"action_mask": mask.astype(np.int8)}

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.t == self.length, False, info


class Limited(MaskedEnv):
    """Two heads; truncated after four steps with a mask that forbids all choices of the second head."""

    def __init__(self, gives_final_mask=True):
        super().__init__("info")
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.gives_final_mask = gives_final_mask

    def _show(self):
        mask = [*(np.arange(3) == self.t % 3), self.t < 4, self.t < 4]
        given = self.t < 4 or self.gives_final_mask
        return np.array([self.t], np.float32), {"action_mask": np.array(mask, np.int8)} if given else {}

    def step(self, action):
        self.t += 1
        observation, info = self._show()
        return observation, 0.0, False, self.t == 4, info


@pytest.mark.parametrize("gives_final_mask", [True, False])
@pytest.mark.parametrize("kind", ["python", "vector"])
def test_a_truncated_episodes_final_observation_keeps_its_mask(kind, gives_final_mask, harness):
    def make():
        return Limited(gives_final_mask)

    group = PythonGroup(make, num_envs=2, seeds=[0, 1])
    if kind == "vector":
        group = VectorGroup(lambda seeds: SyncVectorEnv([make] * 2), seeds=[0, 1])
    env = make()
    data = harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 17, mask_size=5)
    assert data.truncated.sum() == 2 * 3
    x = data.observation["obs"][..., 0].astype(int)
    for t, row in np.ndindex(*x.shape):
        first = np.arange(3) == x[t, row] % 3
        if x[t, row] == 4 and not gives_final_mask:
            first[:] = True
        np.testing.assert_array_equal(data.mask[t, row], [*first, True, True])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_running_rows_keep_their_masks_when_others_reset(mode, harness):
    Uneven.made = 0
    group = VectorGroup(lambda seeds: SyncVectorEnv([Uneven] * 2, autoreset_mode=mode), seeds=[0, 1])
    env = Strict("info")
    data = harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 40, mask_size=3)
    assert data.valid.sum() > 50
    x = data.observation["obs"][:-1, :, 0].astype(int)
    for t, row in np.argwhere(data.valid):
        np.testing.assert_array_equal(data.mask[t, row], np.arange(3) == x[t, row] % 3)


@pytest.mark.parametrize("kind", ["python", "vector"])
@pytest.mark.parametrize(
    ("broken", "message"), [("empty", "allows no choice of action head 0"), ("size", "4 entries: 3 are needed")]
)
def test_invalid_masks_raise(kind, broken, message, harness):
    env = MaskedEnv()
    group = group_of(kind, broken=broken)
    with pytest.raises(InvalidActionMask, match=message):
        harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 5, mask_size=3)


class Forgetful(SyncVectorEnv):
    """Returns no masks in its second step."""

    steps = 0

    def step(self, actions):
        *result, info = super().step(actions)
        self.steps += 1
        return (*result, {} if self.steps == 2 else info)


def test_a_mask_that_disappears_raises(harness):
    env = MaskedEnv()
    vector = VectorGroup(lambda seeds: Forgetful([MaskedEnv] * 2), seeds=[0, 1])
    with pytest.raises(InvalidActionMask, match="with every reset and every step"):
        harness.run(vector, observation_specs(env.observation_space), action_spec(env.action_space), 5, mask_size=3)
    with pytest.raises(InvalidActionMask, match="with every reset and every step"):
        harness.run(
            group_of("python", broken="missing"),
            observation_specs(env.observation_space),
            action_spec(env.action_space),
            5,
            mask_size=3,
        )


class Sometimes(MaskedEnv):
    """Gives a mask at each step, or after a reset alone."""

    def __init__(self, gives):
        super().__init__()
        self.gives = gives

    def _show(self):
        x, info = super()._show()
        return x, info if self.gives or self.t == 0 else {}


def test_a_row_of_a_vector_that_gives_no_mask_is_named(harness):
    env = MaskedEnv()
    vector = VectorGroup(lambda seeds: SyncVectorEnv([lambda: Sometimes(True), lambda: Sometimes(False)]), seeds=[0, 1])
    with pytest.raises(InvalidActionMask, match=r"environment 1.*with every reset and every step"):
        harness.run(vector, observation_specs(env.observation_space), action_spec(env.action_space), 5, mask_size=3)


class Last(gymnasium.Env):
    """Has no mask in its final observation, which is a dict."""

    observation_space = spaces.Dict(x=spaces.Box(0, 9, (1,), np.float32), action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"x": np.zeros(1, np.float32), "action_mask": np.array([1, 0, 0], np.int8)}, {}

    def step(self, action):
        self.t += 1
        shown = {"x": np.full(1, self.t, np.float32), "action_mask": np.array([1, 0, 0], np.int8)}
        if self.t == 3:
            del shown["action_mask"]
        return shown, 0.0, self.t == 3, False, {}


def test_a_final_dict_may_lack_its_mask(harness):
    group = PythonGroup(Last, num_envs=1, seeds=[0])
    data = harness.run(group, observation_specs(Last.observation_space), action_spec(Last.action_space), 9, mask_size=3)
    assert data.terminated.sum() == 2


def test_masks_of_several_heads_may_come_as_a_tuple(harness):
    class TwoHeads(MaskedEnv):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.MultiDiscrete([2, 3])

        def _show(self):
            masks = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))
            return np.array([self.t], np.float32), {"action_mask": masks}

    group = PythonGroup(TwoHeads, num_envs=1, seeds=[0])
    env = TwoHeads()
    data = harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 2, mask_size=5)
    np.testing.assert_array_equal(data.mask[:, 0], [[1, 0, 0, 1, 1]] * 3)


@pytest.mark.parametrize("where", ["info", "observation"])
def test_the_probe_sees_masks(where):
    register_env(f"masked-{where}", MaskedEnv)
    assert probe(EnvConfig(name=f"masked-{where}", kwargs={"where": where})).has_action_mask
    assert not probe(EnvConfig(name="gym/CartPole-v1")).has_action_mask


class MaskedLater(MaskedEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset()[0], {}


def test_probe_rejects_masks_given_only_by_step():
    register_env("masked-later", MaskedLater)
    with pytest.raises(InvalidActionMask, match=r"not with reset: give it with every reset"):
        probe(EnvConfig(name="masked-later"))

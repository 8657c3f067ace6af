"""All autoreset modes produce correct data."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup

ROWS, STEPS = 6, 60
SEEDS = list(range(ROWS))


# Kinds in which the next episode's first observation follows a termination without a masked row.
AT_ONCE = ("same_step", "disabled")


@pytest.fixture(params=["python", "next_step", *AT_ONCE])
def recorded(request, harness):
    return request.param, record(request.param, harness)


def record(kind, harness):
    env = harness.CountingEnv()
    specs, action = observation_specs(env.observation_space), action_spec(env.action_space)
    if kind == "python":
        group = PythonGroup(harness.CountingEnv, num_envs=ROWS, seeds=SEEDS)
    else:
        mode = AutoresetMode[kind.upper()]

        def make(seeds):
            return SyncVectorEnv([harness.CountingEnv] * len(seeds), autoreset_mode=mode)

        group = VectorGroup(make, seeds=SEEDS)
    try:
        return harness.run(group, specs, action, STEPS)
    finally:
        group.close()


def test_valid_steps_are_true_transitions(recorded, harness):
    kind, data = recorded
    env = harness.CountingEnv
    x = data.observation["obs"].astype(int)
    assert data.valid.sum() > ROWS * STEPS / 2
    for t, row in np.argwhere(data.valid):
        seed, episode, count = x[t, row]
        assert data.reward[t, row] == env.reward(seed, episode, count, data.discrete[t, row, 0])
        end = count + 1 == env.length(seed, episode)
        next_is_first = end and env.terminates(seed, episode) and kind in AT_ONCE
        assert tuple(x[t + 1, row]) == ((seed, episode + 1, 0) if next_is_first else (seed, episode, count + 1))
        assert data.terminated[t, row] == (end and env.terminates(seed, episode))
        assert data.truncated[t, row] == (end and not env.terminates(seed, episode))


def test_masked_steps_follow_ends_and_carry_no_data(recorded, harness):
    kind, data = recorded
    ended = data.terminated | data.truncated
    assert not ended[~data.valid].any()
    assert not data.reward[~data.valid].any()
    assert data.valid[0].all()
    if kind not in AT_ONCE:
        np.testing.assert_array_equal(~data.valid[1:], ended[:-1])
        return
    # After truncations only. An episode of one step that ends inside a masked row has no transition; if it was
    # truncated, another masked row follows.
    masked = np.zeros(data.valid.shape, bool)
    for row in range(ROWS):
        episodes = np.flatnonzero(~np.isnan(data.episode_return[:, row]))
        for episode, end in enumerate(episodes):
            if end + 1 < STEPS:
                masked[end + 1, row] = not harness.CountingEnv.terminates(row, episode)
    np.testing.assert_array_equal(~data.valid, masked)


def test_reset_marks_the_first_observation_of_an_episode(recorded, harness):
    kind, data = recorded
    x = data.observation["obs"].astype(int)
    assert data.reset[0].all()
    begun = data.terminated if kind in AT_ONCE else np.zeros_like(data.valid)
    hidden = ~data.valid & ~np.isnan(data.episode_return)  # Episodes of one step inside masked rows.
    np.testing.assert_array_equal(data.reset[1:], ~data.valid | begun | (hidden if kind in AT_ONCE else False))
    for t, row in np.argwhere(data.reset[1:]):
        seed, episode, count = x[t + 1, row]
        after_truncation = episode > 0 and not harness.CountingEnv.terminates(seed, episode - 1)
        assert count == (1 if kind in AT_ONCE and after_truncation else 0)


def test_every_episode_is_reported_with_its_true_return_and_length(recorded, harness):
    kind, data = recorded
    env = harness.CountingEnv
    ended = ~np.isnan(data.episode_return)
    np.testing.assert_array_equal(ended, data.episode_length != 0)
    for row in range(ROWS):
        times = np.flatnonzero(ended[:, row])
        actions = data.discrete[:, row, 0]
        # Same-step vectors step in every time step; others need one for the reset.
        pause = 1 if kind in ("python", "next_step") else 0
        start = 0
        for episode, end in enumerate(times):
            length = env.length(row, episode)
            assert end == start + length - 1
            assert data.episode_length[end, row] == length
            rewards = [env.reward(row, episode, k, actions[start + k]) for k in range(length)]
            assert data.episode_return[end, row] == pytest.approx(sum(rewards))
            start = end + 1 + pause
        assert len(times) >= STEPS // 7


def test_the_final_observation_is_shown(recorded, harness):
    _, data = recorded
    x = data.observation["obs"].astype(int)
    for t, row in np.argwhere(data.truncated):
        seed, episode, count = x[t + 1, row]
        assert count == harness.CountingEnv.length(seed, episode)


def test_python_group_equals_a_next_step_vector(harness):
    ours, vector = record("python", harness), record("next_step", harness)
    for name in ("reset", "reward", "terminated", "truncated", "valid", "episode_return", "episode_length"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(vector, name))
    np.testing.assert_array_equal(ours.observation["obs"], vector.observation["obs"])


@pytest.mark.parametrize("kind", AT_ONCE)
def test_other_modes_lose_only_the_first_step_after_truncation(kind, harness):
    data = record(kind, harness)
    x = data.observation["obs"].astype(int)
    env = harness.CountingEnv
    seen = {(*x[t, row],) for t, row in np.argwhere(data.valid)}
    for row in range(ROWS):
        last = x[-1, row, 1]
        for episode in range(last):
            is_whole = episode == 0 or env.terminates(row, episode - 1)
            for count in range(env.length(row, episode)):
                assert ((row, episode, count) in seen) == (is_whole or count > 0)


def test_values_of_a_vectors_own_masked_row_are_ignored(harness):
    class Generous(SyncVectorEnv):
        def step(self, actions):
            observation, reward, terminated, truncated, info = super().step(actions)
            return observation, np.where(self._rewards == 0, 100.0, reward), terminated, truncated, info

    env = harness.CountingEnv
    specs, action = observation_specs(env.observation_space), action_spec(env.action_space)
    ours = record("python", harness)
    theirs = harness.run(VectorGroup(lambda seeds: Generous([env] * ROWS), seeds=SEEDS), specs, action, STEPS)
    # Seed 0's first transition with action 0 has reward 0, too; all others have another reward.
    rows = slice(1, None)
    np.testing.assert_array_equal(ours.reward[:, rows], theirs.reward[:, rows])
    np.testing.assert_array_equal(ours.episode_return[:, rows], theirs.episode_return[:, rows])


def test_time_limit_of_a_python_group_truncates_after_that_many_steps(harness):
    class Endless(harness.CountingEnv):
        @staticmethod
        def length(seed, episode):
            return 3 if episode == 1 else 1000

        @staticmethod
        def terminates(seed, episode):
            return True

    group = PythonGroup(Endless, num_envs=1, seeds=[0], max_episode_steps=4)
    data = harness.run(group, observation_specs(Endless.observation_space), action_spec(Endless.action_space), 14)
    # Episode 0 is truncated after 4 steps, episode 1 terminates after 3, episode 2 is truncated after 4.
    np.testing.assert_array_equal(np.flatnonzero(data.truncated[:, 0]), [3, 12])
    np.testing.assert_array_equal(np.flatnonzero(data.terminated[:, 0]), [7])
    np.testing.assert_array_equal(data.episode_length[[3, 7, 12], 0], [4, 3, 4])
    np.testing.assert_array_equal(data.observation["obs"][4, 0], [0, 0, 4])


class Bandit(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    terminates = True

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, self.terminates, not self.terminates, {}


class TruncatedBandit(Bandit):
    terminates = False


def run_bandit(env, mode, harness):
    group = VectorGroup(lambda seeds: SyncVectorEnv([env] * 2, autoreset_mode=mode), seeds=[0, 1])
    return harness.run(group, observation_specs(env.observation_space), action_spec(env.action_space), 200)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_episodes_of_one_step_are_complete(mode, harness):
    data = run_bandit(Bandit, mode, harness)
    for name in ("valid", "terminated", "reset"):
        assert getattr(data, name).all()
    assert not data.observation["obs"].any()
    assert (data.episode_length == 1).all()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_truncation_after_one_step_raises_if_no_episode_is_visible(mode, harness):
    with pytest.raises(UnsupportedSpace, match=r"truncated after a single step.*autoreset_mode=NEXT_STEP"):
        run_bandit(TruncatedBandit, mode, harness)


def test_failing_close_of_a_vector_is_logged_not_raised(caplog):
    class Stubborn(SyncVectorEnv):
        def close(self, **kwargs):
            raise BrokenPipeError("gone")

    group = VectorGroup(lambda seeds: Stubborn([Bandit] * 2), seeds=[0, 1])
    group.close()
    assert "BrokenPipeError: gone" in caplog.text
    assert group.failures == []

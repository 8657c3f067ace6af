"""EnvPool's games against a plain loop over the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment, UnsupportedSpace
from rollmill.envs.factory import make_group, probe
from rollmill.envs.player_group import PlayerGroup
from rollmill.envs.views import own_views
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

envpool = pytest.importorskip("envpool")

GAMES = ["ConnectFour-v1", "KuhnPoker-v1", "Backgammon-v1", "SparrowMahjong-v1"]
SEEDS = [5, 6, 7]


def first_allowed(mask: Any, key: int) -> int:
    allowed = np.flatnonzero(mask)
    return int(allowed[key % len(allowed)])


@pytest.mark.parametrize("game", GAMES)
def test_rows_hold_what_a_plain_loop_over_the_pool_sees(game: str) -> None:
    config = EnvConfig(name=f"envpool/{game}")
    spec = probe(config)
    players = spec.rows_per_env
    assert spec.agents == tuple(f"player_{index}" for index in range(players))
    into, outcome = own_views(spec, len(SEEDS) * players)
    group = make_group(config, len(SEEDS), SEEDS, agents=spec.agents)
    assert isinstance(group, PlayerGroup)
    pool = envpool.make_gymnasium(game, num_envs=len(SEEDS), num_threads=1, seed=SEEDS)
    observation, info = pool.reset()
    group.reset(into)
    over = np.zeros(len(SEEDS), bool)
    returns = np.zeros((len(SEEDS), players))
    turns = np.zeros((len(SEEDS), players), int)
    ended = 0
    for step in range(400):
        for index in range(len(SEEDS)):
            rows = range(index * players, (index + 1) * players)
            acting = [] if over[index] else [int(info["current_player"][index])]
            assert np.flatnonzero(into.acts[rows.start : rows.stop]).tolist() == acting
            for player in acting:
                row = rows.start + player
                np.testing.assert_array_equal(into.observation["obs"][row], observation[row])
                np.testing.assert_array_equal(into.action_mask[row], info["legal_action_mask"][index])
                assert into.reset[row] == (turns[index, player] == 0)
        was_over, current = over, info["current_player"].copy()
        choices = np.array([first_allowed(mask, step) for mask in info["legal_action_mask"]], np.int32)
        # What other rows hold must not matter.
        actions = np.full((group.num_rows, 1), 9999, np.int32)
        actions[np.arange(len(SEEDS)) * players + current, 0] = choices
        group.step(actions, None, into, outcome)
        observation, reward, terminated, _, info = pool.step(choices)
        reward = reward.reshape(len(SEEDS), players)
        over = terminated & ~was_over
        for index in range(len(SEEDS)):
            if was_over[index]:
                turns[index], returns[index] = 0, 0
            else:
                turns[index, current[index]] += 1
                returns[index] += reward[index]
            for player in range(players):
                row = index * players + player
                assert outcome.valid[row] == (not was_over[index] and player == current[index])
                assert outcome.reward[row] == (0 if was_over[index] else reward[index, player])
                has_ended = over[index] and turns[index, player] > 0
                assert outcome.terminated[row] == has_ended
                assert outcome.episode_length[row] == (turns[index, player] if has_ended else 0)
                if has_ended:
                    assert outcome.episode_return[row] == returns[index, player]
                    ended += 1
    assert ended >= 10
    group.close()


class Truncating:
    """A pool of one game that is truncated after four moves; no game of EnvPool's is, whatever its limit."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(7)

    def reset(self) -> Any:
        self.moves = 0
        return self._seen()

    def step(self, actions: Any) -> Any:
        self.moves = 0 if self.moves == 4 else self.moves + 1
        observation, info = self._seen()
        return observation, np.ones(2, np.float32), np.zeros(1, bool), np.array([self.moves == 4]), info

    def _seen(self) -> Any:
        return np.full((2, 1), self.moves, np.float32), {"current_player": np.array([self.moves % 2])}

    def close(self) -> None:
        pass


def test_a_truncated_game_shows_all_players_its_final_observation() -> None:
    agents = ("player_0", "player_1")
    observation = {"obs": ArraySpec(shape=(1,), dtype="float32")}
    action = ActionSpec(heads=(CategoricalHead(n=7),), structure="discrete")
    into, outcome = own_views(EnvSpec(name="test", observation=observation, action=action, agents=agents), 2)
    group = PlayerGroup(lambda seeds: Truncating(), agents=agents, seeds=[1])
    group.reset(into)
    for step in range(4):
        assert into.acts.sum() == 1
        group.step(np.full((2, 1), step, np.int32), None, into, outcome)
    assert outcome.truncated.all()
    assert outcome.episode_return.tolist() == [4, 4]
    assert outcome.episode_length.tolist() == [2, 2]
    assert into.acts.all()
    group.step(np.zeros((2, 1), np.int32), None, into, outcome)
    assert not outcome.valid.any()
    assert into.acts.sum() == into.reset.sum() == 1
    group.close()


def test_a_time_limit_that_no_pool_of_games_keeps_is_refused() -> None:
    with pytest.raises(UnknownEnvironment, match=r"env\.max_episode_steps=9 cannot be enforced"):
        probe(EnvConfig(name="envpool/ConnectFour-v1", max_episode_steps=9))


def test_players_who_act_at_the_same_time_are_refused() -> None:
    with pytest.raises(UnsupportedSpace, match="who act at the same time"):
        probe(EnvConfig(name="envpool/IntersectionMultiAgent-v1"))

"""Matches that were the same game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.regimes.nim import Nim

from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.views import own_views
from rollmill.evaluation.repeated_games import RepeatedGames
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

SPEC = EnvSpec(
    name="nim",
    observation={"matches": ArraySpec(shape=(8,), dtype="uint8")},
    action=ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete"),
    agents=("first", "second"),
    has_action_mask=True,
)


def repeated(choose: Any, limit: int | None, kinds: list[int], matches: int = 6) -> list[bool]:
    """Whether the matches of each kind were the same game; ``choose`` gets the game and the step of its match."""
    group = AgentGroup(
        Nim, agents=SPEC.agents, num_envs=2, seeds=[0, 1], max_episode_steps=limit, shows_end=limit is not None
    )
    traced = RepeatedGames(group, np.array(kinds))
    into, outcome = own_views(SPEC, group.num_rows)
    traced.reset(into)
    played, step, begun = [0, 0], [0, 0], group.episodes.copy()
    while min(played) < matches:
        actions = np.repeat([choose(game, step[game], played[game]) for game in (0, 1)], 2)[:, None]
        traced.step(actions.astype(np.int32), None, into, outcome)
        for game in (0, 1):
            step[game] += 1
            over = group.resets_next[game] or group.episodes[game] > begun[game]
            if over and (outcome.episode_length[2 * game : 2 * game + 2] > 0).any():
                traced.end(game, outcome.episode_return[2 * game : 2 * game + 2].astype(np.float64))
                played[game] += 1
            if over:
                traced.begin(game)
                step[game] = 0
        begun = group.episodes.copy()
    traced.close()
    return [traced.is_repeated(kind) for kind in sorted(set(kinds))]


@pytest.mark.parametrize("limit", [None, 3])
def test_equal_games_are_found_whether_or_not_they_are_cut(limit: int | None) -> None:
    assert repeated(lambda game, step, match: 0, limit, [0, 0]) == [True]
    assert repeated(lambda game, step, match: 0, limit, [0, 1], matches=5) == [False, False]


def test_one_other_action_in_any_match_makes_a_difference() -> None:
    assert repeated(lambda game, step, match: int((game, step) == (1, 0)), None, [0, 1]) == [True, True]
    assert repeated(lambda game, step, match: int((game, step) == (1, 0)), None, [0, 0]) == [False]
    assert repeated(lambda game, step, match: int((game, step, match) == (1, 0, 4)), None, [0, 1]) == [True, False]

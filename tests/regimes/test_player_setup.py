"""Who plays in a run: what is refused before processes start, and the user's rule in numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import rollmill
from rollmill.algorithms.exploration import ladder
from rollmill.regimes.player_setup import assignment_rule, check_players, is_drawn, ladder_rungs, players_of
from rollmill.rollout.assignment import ASSIGNMENTS
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.player_ids import PlayerIds

ALONE = EnvSpec(
    name="alone",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
TOGETHER = EnvSpec(name="together", observation=ALONE.observation, action=ALONE.action, agents=("red", "blue"))


def config_of(algo: str | None = None, **settings: Any) -> Config:
    small = {"replay.min_size": 10, "replay.capacity": 1000} if algo else {}
    return rollmill.make_config("gym/CartPole-v1", {"num_envs": 2, **small, **settings}, algo=algo)


@pytest.mark.parametrize("algo", [None, "dqn"])
@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (ALONE, {"population.snapshots": 2}, r"population\.snapshots=2, but alone has one agent"),
        (ALONE, {"population.guests": "random"}, r"population\.guests=random, but alone has one agent"),
        (ALONE, {"population.policies": 3}, "3 policies .* but 2 environments"),
        (TOGETHER, {"population.snapshots": 2, "population.matchmaking": "nearest"}, "nearest"),
        (TOGETHER, {"population.assignment": "by_colour"}, "by_colour"),
        (
            TOGETHER,
            {"population.policies": 4, "population.assignment": "fixed"},
            r"population\.assignment='fixed' gives policy '3' no agent in 2 environments",
        ),
        (TOGETHER, {"policy.0.agents": "green"}, "'green' fits none of the agents red, blue"),
    ],
)
def test_players_that_fit_nothing_are_refused(
    algo: str | None, spec: EnvSpec, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_players(config_of(algo, **settings), spec)


def test_players_are_counted() -> None:
    settings = {"population.policies": "a,b", "population.snapshots": 3, "population.guests": "random"}
    config = config_of("dqn", **settings)
    assert players_of(config) == PlayerIds(policies=2, places=3, guests=1)
    check_players(config, TOGETHER)
    assert is_drawn(config, TOGETHER.agents)
    assert not is_drawn(config, ())


def test_the_users_rule_gives_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    rollmill.register_assignment("by_colour", lambda agent, env, episode: "b" if agent == "red" else "random")
    settings = {"population.policies": "a,b", "population.snapshots": 3, "population.guests": "random"}
    rule = assignment_rule(config_of(**settings, **{"population.assignment": "by_colour"}), TOGETHER.agents)
    assert rule is not None
    assert [rule(agent, 0, 1) for agent in (0, 1)] == [1, 8]
    assert assignment_rule(config_of(), TOGETHER.agents) is None


@pytest.mark.parametrize(
    ("spec", "settings", "players"),
    [
        (ALONE, {}, [0, 0, 0, 1, 1, 1]),
        (TOGETHER, {"population.assignment": "fixed"}, [0, 1, 1, 0] * 3),
    ],
)
def test_each_of_several_policies_has_the_whole_ladder(
    spec: EnvSpec, settings: dict[str, Any], players: list[int]
) -> None:
    config = config_of("dqn", **{"population.policies": 2, **settings, "num_envs": 6})
    rungs = ladder_rungs(config, spec)
    assert rungs is not None
    epsilons = ladder(torch.from_numpy(rungs), len(rungs), 0.4, 7.0)
    own = len(rungs) // 2
    for policy in range(2):
        of_policy = epsilons[torch.tensor(players) == policy]
        torch.testing.assert_close(of_policy, ladder(torch.arange(own), own, 0.4, 7.0))


def test_the_places_on_the_ladder_are_those_of_the_rows_otherwise() -> None:
    assert ladder_rungs(config_of("dqn", num_envs=6), ALONE) is None
    drawn = {"population.policies": 2, "population.assignment": "random"}
    assert ladder_rungs(config_of("dqn", num_envs=6, **drawn), ALONE) is None
    single = ladder_rungs(config_of("dqn", num_envs=3, **{"population.policies": 2}), ALONE)
    assert single is not None
    np.testing.assert_array_equal(single, np.array([0, 2, 0], np.float32))


@pytest.mark.parametrize("given", ["c", 0, ["a"], None])
def test_a_rule_that_names_nobody_is_told_the_names(given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    rollmill.register_assignment("wrong", lambda agent, env, episode: given)  # type: ignore[arg-type,return-value]
    settings = {"population.policies": "a,b", "population.assignment": "wrong"}
    rule = assignment_rule(config_of(**settings), TOGETHER.agents)
    assert rule is not None
    with pytest.raises(ConfigError, match=f"gave {re.escape(repr(given))} for agent 'red': give one of 'a', 'b'"):
        rule(0, 0, 1)

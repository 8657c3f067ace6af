"""Reward terms and objectives of episodes, as each kind of group writes them into slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.envs.agent_games import AGENTS, Crowd, Rounds, choose

from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.errors import InvalidReward
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.row_info import RowInfo
from rollmill.envs.vector_group import VectorGroup
from rollmill.envs.views import ObservationView, OutcomeView

ROWS, STEPS = 6, 60
SEEDS = list(range(ROWS))
TERMS = ("one", "twice")


def telling(harness: Any) -> type[gymnasium.Env[Any, Any]]:
    """CountingEnv that tells twice its reward, 1, and at the end of an episode ten times its return."""

    class Telling(harness.CountingEnv):  # type: ignore[misc]  # the fixture is untyped
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.total = 0.0
            observation, info = super().reset(seed=seed)
            return observation, {**info, "reward_terms": {"twice": 77.0, "one": 77.0}}

        def step(self, action: int) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            self.total += float(np.float32(reward))
            terms = {"more": 5.0, "twice": 2 * np.float32(reward), "one": 1}
            info = {**info, "reward_terms": terms}
            if terminated or truncated:
                info["true_objective"] = 10 * self.total
            return observation, reward, terminated, truncated, info

    return Telling


def outcome_of(rows: int) -> OutcomeView:
    floats, flags = np.zeros((2, rows), np.float32), np.zeros((3, rows), bool)
    return OutcomeView(
        floats[0],
        *flags,
        floats[1],
        np.zeros(rows, np.int32),
        np.full((rows, len(TERMS)), 55, np.float32),
        np.full(rows, 55, np.float32),
    )


@pytest.mark.parametrize("kind", ["python", "next_step", "same_step", "disabled"])
def test_entries_belong_to_their_transition(kind: str, harness: Any) -> None:
    env = telling(harness)
    if kind == "python":
        group: Any = PythonGroup(env, num_envs=ROWS, seeds=SEEDS, reward_terms=TERMS)
    else:
        mode = AutoresetMode[kind.upper()]
        group = VectorGroup(
            lambda seeds: SyncVectorEnv([env] * len(seeds), autoreset_mode=mode), seeds=SEEDS, reward_terms=TERMS
        )
    into, random = ObservationView({"obs": np.zeros((ROWS, 3), np.float32)}, None, np.zeros(ROWS, bool)), np.random
    group.reset(into)
    ends, counted = 0, 0
    for _ in range(STEPS):
        outcome = outcome_of(ROWS)
        group.step(random.default_rng(0).integers(0, 5, (ROWS, 1)).astype(np.int32), None, into, outcome)
        assert outcome.reward_terms is not None
        assert outcome.episode_objective is not None
        expected = np.stack([np.ones(ROWS), 2 * outcome.reward], axis=1) * outcome.valid[:, None]
        np.testing.assert_allclose(outcome.reward_terms, expected, rtol=1e-6)
        ended = (outcome.episode_length > 0) & outcome.valid
        np.testing.assert_allclose(outcome.episode_objective[ended], 10 * outcome.episode_return[ended], rtol=1e-5)
        ends += int(ended.sum())
        counted += int(outcome.valid.sum())
    group.close()
    assert ends > 30
    assert counted > 150


class OneStep(gymnasium.Env[Any, Any]):
    """Each episode is one step, and only steps tell terms."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), 1.0, True, False, {"reward_terms": {"one": 1.0, "twice": 2.0}}


def test_terms_of_episodes_that_all_end_at_once_are_those_of_the_last_step() -> None:
    group = VectorGroup(
        lambda seeds: SyncVectorEnv([OneStep] * len(seeds), autoreset_mode=AutoresetMode.SAME_STEP),
        seeds=[0, 1],
        reward_terms=TERMS,
    )
    into = ObservationView({"obs": np.zeros((2, 3), np.float32)}, None, np.zeros(2, bool))
    group.reset(into)
    for _ in range(3):
        outcome = outcome_of(2)
        group.step(np.zeros((2, 1), np.int32), None, into, outcome)
        np.testing.assert_array_equal(outcome.reward_terms, [[1.0, 2.0]] * 2)
    group.close()


def test_entries_of_agents_belong_to_their_rows() -> None:
    class Telling(Crowd):
        def step(self, actions: dict[str, int]) -> Any:
            observations, rewards, terminated, truncated, _ = super().step(actions)
            infos = {
                agent: {"reward_terms": {"one": AGENTS.index(agent), "twice": 2 * reward}, "true_objective": reward}
                for agent, reward in rewards.items()
            }
            return observations, rewards, terminated, truncated, infos

    group = AgentGroup(Telling, agents=AGENTS, num_envs=2, seeds=[3, 11], reward_terms=TERMS)
    rows = group.num_rows
    into = ObservationView(
        {"obs": np.zeros((rows, 3), np.float32)}, None, np.zeros(rows, bool), acts=np.zeros(rows, bool)
    )
    group.reset(into)
    ends = 0
    for _ in range(STEPS):
        outcome = outcome_of(rows)
        actions = [[choose(row % len(AGENTS), tuple(into.observation["obs"][row].tolist()))] for row in range(rows)]
        group.step(np.array(actions, np.int32), None, into, outcome)
        assert outcome.reward_terms is not None
        assert outcome.episode_objective is not None
        np.testing.assert_allclose(outcome.reward_terms[:, 1], 2 * outcome.reward, rtol=1e-6)
        paid = outcome.reward != 0
        np.testing.assert_array_equal(outcome.reward_terms[paid, 0], np.arange(rows)[paid] % len(AGENTS))
        ended = (outcome.episode_length > 0) & paid
        np.testing.assert_allclose(outcome.episode_objective[ended], outcome.reward[ended], rtol=1e-6)
        ends += int(ended.sum())
    assert ends > 10


def test_agents_may_have_different_terms() -> None:
    row_info = RowInfo(TERMS, "game", agents=3)
    row_info.see({0: {}, 1: {}}, [1, 1], is_over=False)  # Nothing was told yet.
    infos = {0: {"reward_terms": {"one": 1.0}}, 1: {"other": 3}, 2: {"reward_terms": {"twice": 2.0}}}
    row_info.see(infos, [1, 1, 1], is_over=False)
    outcome = outcome_of(2)
    row_info.clear(outcome)
    row_info.write(0, {"other": 3}, outcome)
    row_info.write(1, {"reward_terms": {"twice": 2.0}}, outcome)
    assert outcome.reward_terms is not None
    assert outcome.reward_terms.tolist() == [[0.0, 0.0], [0.0, 2.0]]
    with pytest.raises(InvalidReward, match=r"no reward term 'twice'.* after the first actions of its agents"):
        RowInfo(TERMS, "game", agents=1).see({0: {"reward_terms": {"one": 1.0}}}, [1], is_over=False)
    resumed = RowInfo(TERMS, "game")
    resumed.resume()
    resumed.write(0, {"other": 3}, outcome)


def test_terms_of_agents_that_act_in_turns_are_collected() -> None:
    row_info, outcome = RowInfo(TERMS, "game", agents=2), outcome_of(2)
    row_info.see({1: {"action_mask": [1, 1]}}, [1, 0], is_over=False)
    row_info.write(1, {"action_mask": [1, 1]}, outcome)
    row_info.see({0: {"reward_terms": {"one": 1.0}}}, [1, 1], is_over=False)
    row_info.write(0, {"reward_terms": {"one": 1.0}}, outcome)
    assert outcome.reward_terms is not None
    assert outcome.reward_terms[0].tolist() == [1.0, 0.0]
    with pytest.raises(InvalidReward, match="no reward term 'twice'"):
        row_info.see({1: {"action_mask": [1, 1]}}, [1, 1], is_over=False)


@pytest.mark.parametrize("info", [{}, {"action_mask": [1, 1]}])
def test_terms_of_agents_are_missing_when_the_first_episode_is_over(info: dict[str, Any]) -> None:
    row_info = RowInfo(TERMS, "game", agents=2)
    row_info.see({1: info}, [1, 0], is_over=False)
    with pytest.raises(InvalidReward, match=r"gives no info\['reward_terms'\] after the first actions of its agents"):
        row_info.see({}, [1, 0], is_over=True)


class Told(Rounds):
    """Tells agents of terms, each of its own, from their first actions on."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if action is not None:
            self.acted.add(self.last_one)
        for agent in self.agents:
            terms = {"reward_terms": {TERMS[agent == "ann"]: 3.0}} if agent in self.acted else {}
            self.infos[agent] = {"action_mask": [1] * 4, **terms}
        self.last_one = self.agent_selection

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.acted: set[str] = set()
        self.last_one = self.agent_selection


class ToldAtOnce(Rounds):
    """Tells all agents of every step, until it is cut off or removes all agents at once."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.length = 100

    def step(self, action: int | None) -> None:
        super().step(action)
        self.infos = {
            agent: {"reward_terms": {"one": self.time, "twice": 0}, "true_objective": self.time, "metrics": {"m": 1}}
            for agent in self.agents
        }


class Abrupt(ToldAtOnce):
    def step(self, action: int | None) -> None:
        super().step(action)
        if self.time == 4:
            self.agents = []


@pytest.mark.parametrize("is_cut", [True, False])
def test_agents_that_are_not_selected_are_told_when_the_game_is_over(is_cut: bool) -> None:
    env, limit = (ToldAtOnce, 4) if is_cut else (Abrupt, None)
    group = AgentGroup(
        env, agents=AGENTS, num_envs=1, seeds=[5], max_episode_steps=limit, reward_terms=TERMS, shows_end=True
    )
    mask = np.ones((3, 4), bool)
    into = ObservationView({"observation": np.zeros((3, 3), np.float32)}, mask, np.zeros(3, bool), np.zeros(3, bool))
    group.reset(into)
    for _ in range(4):
        outcome = outcome_of(3)
        group.step(mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)
    assert outcome.reward_terms is not None
    assert outcome.episode_objective is not None
    ended = outcome.episode_length > 0
    assert ended.sum() > 1
    assert outcome.episode_objective[ended].tolist() == [4.0] * ended.sum()
    assert outcome.reward_terms[ended, 0].tolist() == [4.0] * ended.sum()


def test_agents_that_act_in_turns_give_their_terms_with_their_own_turns() -> None:
    group = AgentGroup(Told, agents=AGENTS, num_envs=1, seeds=[3], reward_terms=TERMS)
    spec_mask = np.ones((3, 4), bool)
    into = ObservationView(
        {"observation": np.zeros((3, 3), np.float32)}, spec_mask, np.zeros(3, bool), np.zeros(3, bool)
    )
    group.reset(into)
    totals = np.zeros((3, 2))
    for _ in range(STEPS):
        outcome = outcome_of(3)
        group.step(spec_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)
        assert outcome.reward_terms is not None
        totals += outcome.reward_terms
    assert (totals > 0).tolist() == [[False, True], [True, False], [True, False]]


def test_slots_without_a_place_get_nothing(harness: Any) -> None:
    group = PythonGroup(telling(harness), num_envs=1, seeds=[0], reward_terms=TERMS)
    into = ObservationView({"obs": np.zeros((1, 3), np.float32)}, None, np.zeros(1, bool))
    group.reset(into)
    outcome = outcome_of(1)._replace(reward_terms=None, episode_objective=None)
    assert not RowInfo.is_asked(outcome)
    group.step(np.zeros((1, 1), np.int32), None, into, outcome)


GIVEN = {"reward_terms": {"one": 0.0, "twice": 0.0}}
GIVEN_ROWS = {"reward_terms": {"one": np.zeros(2), "twice": np.zeros(2)}}


def write(info: Mapping[str, Any]) -> OutcomeView:
    outcome, row_info = outcome_of(1), RowInfo(TERMS, "game")
    row_info.clear(outcome)
    row_info.write(0, info, outcome)
    return outcome


def write_rows(info: Mapping[str, Any]) -> OutcomeView:
    outcome, row_info = outcome_of(2), RowInfo(TERMS, "game")
    row_info.clear(outcome)
    row_info.write_rows(info, outcome)
    return outcome


@pytest.mark.parametrize(
    ("call", "info", "message"),
    [
        (write, {"reward_terms": [1.0]}, r"gave info\['reward_terms'\] of type list: give a dict of numbers"),
        (
            write,
            {"reward_terms": {"one": 1.0, "twce": 2.0}},
            "gives no reward term 'twice', which .* gives 'one', 'twce'",
        ),
        (write, {"reward_terms": {}}, "no reward term 'one', 'twice'.*it gives none.* give 0.0 for a term"),
        (write, {"reward_terms": {"one": np.nan, "twice": 1}}, r"info\['reward_terms'\]\['one'\] = nan: give a finite"),
        (write, {"reward_terms": {"one": "x", "twice": 1}}, "= 'x': give a finite number"),
        (write, {"reward_terms": {"one": 1, "twice": 1e39}}, r"'twice'\] = 1e\+39: .* that fits float32"),
        (write_rows, {**GIVEN_ROWS, "true_objective": np.array([1.0, 1e39])}, r"info\['true_objective'\] = .*1e\+39"),
        (write, {}, r"gives no info\['reward_terms'\] in its first step, but .* for one, twice: give a dict"),
        (write, {**GIVEN, "true_objective": None}, r"info\['true_objective'\] = None: give a finite number"),
        (
            write_rows,
            {"reward_terms": {"one": np.zeros(3), "twice": np.zeros(2)}},
            r"'one'\] of shape \(3,\): give one number for each row",
        ),
        (write_rows, {**GIVEN_ROWS, "true_objective": np.array([1.0, np.inf])}, r"info\['true_objective'\] = .*inf"),
    ],
)
def test_what_is_no_number_or_has_no_weight_is_refused(
    call: Callable[[Mapping[str, Any]], OutcomeView], info: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(InvalidReward, match=f"game {message}" if message.startswith("g") else message):
        call(info)


def test_the_wrong_term_is_named_also_where_another_one_is_left_out() -> None:
    outcome, row_info = outcome_of(1), RowInfo(TERMS, "game")
    row_info.write(0, GIVEN, outcome)
    with pytest.raises(InvalidReward, match=r"'twice'\] = nan"):
        row_info.write(0, {"reward_terms": {"twice": np.nan}}, outcome)


def test_rows_of_a_vector_that_have_no_entry_keep_none() -> None:
    outcome = write_rows(
        {
            "reward_terms": {
                "one": np.array([3.0, 9.0]),
                "_one": np.array([True, False]),
                "twice": np.array([1.0, 2.0]),
            },
            "true_objective": np.array([4.0, 9.0]),
            "_true_objective": np.array([True, False]),
        }
    )
    np.testing.assert_array_equal(outcome.reward_terms, [[3.0, 1.0], [0.0, 2.0]])
    np.testing.assert_array_equal(outcome.episode_objective, [4.0, np.nan])


def test_only_some_rows_are_written() -> None:
    outcome, row_info = outcome_of(2), RowInfo(TERMS, "game")
    info = {"reward_terms": {"one": np.ones(2), "twice": np.ones(2)}, "true_objective": np.ones(2)}
    row_info.clear(outcome)
    row_info.write_rows(info, outcome, only=np.array([False, True]))
    np.testing.assert_array_equal(outcome.reward_terms, [[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_array_equal(outcome.episode_objective, [np.nan, 1.0])

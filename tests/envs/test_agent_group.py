"""Groups of multi-agent environments against plain loops over PettingZoo's interfaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.agent_games import AGENTS, Crowd, Rounds, Seen, choose, plain_turns

from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import EnvironmentFailure, InvalidReward, NonFiniteObservation, UnsupportedSpace
from rollmill.envs.factory import make_group, probe
from rollmill.envs.failures import RestartBudget
from rollmill.envs.registry import register_env
from rollmill.envs.views import ObservationView, OutcomeView, own_views

SEEDS = [3, 11]


def views(env: Any, name: str, num_envs: int) -> tuple[ObservationView, OutcomeView]:
    register_env(name, env)
    spec = probe(EnvConfig(name=name))
    assert list(spec.agents) == AGENTS
    assert spec.has_action_mask == (env is Rounds)
    into, outcome = own_views(spec, num_envs * len(AGENTS))
    for array in into.observation.values():  # What is not written must not matter.
        array.fill(np.nan)
    return into, outcome


def played(group: Any, into: ObservationView, outcome: OutcomeView, steps: int) -> list[list[list[Seen]]]:
    """Step a group; returns the turns of each row and episode, literally by the rules of ``rollmill.specs``."""
    rows = group.num_rows
    entry = next(iter(into.observation))
    turns: list[list[list[Seen]]] = [[] for _ in range(rows)]
    awaits_final = [False] * rows
    group.reset(into)
    for _ in range(steps):
        actions = np.zeros((rows, 1), np.int32)
        acted = into.acts.copy()
        for row in range(rows):
            if not acted[row]:
                assert not into.reset[row]
                continue
            seen = tuple(into.observation[entry][row].tolist())
            if awaits_final[row]:
                assert not into.reset[row]
                turns[row][-1][-1].final = seen
                continue
            if into.reset[row]:
                turns[row].append([])
            actions[row] = choose(row % len(AGENTS), seen)
            if into.action_mask is not None:
                assert into.action_mask[row, actions[row, 0]]
            turns[row][-1].append(Seen(seen, int(actions[row, 0]), first=bool(into.reset[row])))
        for array in outcome[:6]:
            array.fill(1)
        group.step(actions, None, into, outcome)
        for row in range(rows):
            assert outcome.valid[row] == (acted[row] and not awaits_final[row])
            awaits_final[row] = False
            if turns[row] and not turns[row][-1][-1].end:
                turns[row][-1][-1].reward += float(outcome.reward[row])
            if outcome.terminated[row] or outcome.truncated[row]:
                turns[row][-1][-1].end = "terminated" if outcome.terminated[row] else "truncated"
                awaits_final[row] = not outcome.terminated[row]
                assert outcome.episode_length[row] == len(turns[row][-1])
                # Rewards before the first turn count, too, but only in the return.
                assert outcome.episode_return[row] >= sum(turn.reward for turn in turns[row][-1]) - 1e-3
            else:
                assert outcome.episode_length[row] == 0
                assert np.isnan(outcome.episode_return[row])
    return turns


@pytest.mark.parametrize("env", [Crowd, Rounds])
def test_rows_hold_what_a_plain_loop_sees(env: Any) -> None:
    into, outcome = views(env, "test/game", len(SEEDS))
    group = AgentGroup(env, agents=AGENTS, num_envs=len(SEEDS), seeds=SEEDS)
    turns = played(group, into, outcome, 300)
    for index, seed in enumerate(SEEDS):
        by_agent = turns[index * len(AGENTS) : (index + 1) * len(AGENTS)]
        episodes = plain_turns(env(), seed, 200)
        for agent, of_row in enumerate(by_agent):
            wanted = [of_agents[agent] for of_agents in episodes if of_agents[agent]]
            assert len(of_row) > 20
            # The last episode may be incomplete.
            assert of_row[:-1] == wanted[: len(of_row) - 1]
    ends = {turn.end for row in turns for episode in row for turn in episode}
    assert ends == {"", "terminated", "truncated"}


@pytest.mark.parametrize("env", [Crowd, Rounds])
def test_a_time_limit_truncates_all_agents_with_their_final_observations(env: Any) -> None:
    into, outcome = views(env, "test/limited", 1)
    group = AgentGroup(env, agents=AGENTS, num_envs=1, seeds=[5], max_episode_steps=3)
    turns = played(group, into, outcome, 200)
    for row in turns:
        for episode in row[:-1]:
            assert episode[-1].end
            if episode[-1].end == "truncated":
                assert episode[-1].final is not None
                assert episode[-1].final[1] <= 3
    assert any(episode[-1].end == "truncated" and episode[-1].final[1] == 3 for row in turns for episode in row[:-1])


class LongRounds(Rounds):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.length = 100
        self.earned = dict.fromkeys(AGENTS, 0.0)

    def _accumulate_rewards(self) -> None:
        super()._accumulate_rewards()
        for agent, reward in self.rewards.items():
            self.earned[agent] += reward


def test_a_time_limit_pays_what_agents_have_earned_since_their_last_turn() -> None:
    into, outcome = views(Rounds, "test/paid", 1)
    group = AgentGroup(LongRounds, agents=AGENTS, num_envs=1, seeds=[5], max_episode_steps=4)
    group.reset(into)
    game = group._games[0].env
    paid = np.zeros(len(AGENTS))
    while not outcome.truncated.any():
        assert into.action_mask is not None
        group.step(into.action_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)
        paid += outcome.reward
    cut = outcome.truncated
    assert cut.sum() > 1
    assert paid[cut].tolist() == pytest.approx(np.array(list(game.earned.values()))[cut].tolist())
    np.testing.assert_allclose(outcome.episode_return[cut], paid[cut])


class Fatal(LongRounds):
    """The first action ends the last agent, which is not told before its turn."""

    def step(self, action: int | None) -> None:
        super().step(action)
        self.terminations[AGENTS[-1]] = True


def test_an_agent_that_has_terminated_before_a_time_limit_is_not_truncated() -> None:
    into, outcome = views(Rounds, "test/fatal", 1)
    group = AgentGroup(Fatal, agents=AGENTS, num_envs=1, seeds=[5], max_episode_steps=2)
    group.reset(into)
    while not outcome.truncated.any():
        assert into.action_mask is not None
        group.step(into.action_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)
    assert not outcome.truncated[-1]


class Abrupt(LongRounds):
    """Ends an episode by removing all agents at once."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if self.time == 5:
            self.agents = []


def test_an_episode_that_ends_without_agents_pays_what_they_have_earned() -> None:
    into, outcome = views(Rounds, "test/abrupt", 1)
    group = AgentGroup(Abrupt, agents=AGENTS, num_envs=1, seeds=[5], shows_end=True)
    group.reset(into)
    game = group._games[0].env
    paid = np.zeros(len(AGENTS))
    for _ in range(5):
        assert into.action_mask is not None
        group.step(into.action_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)
        paid += outcome.reward
    ended = outcome.terminated
    assert ended.sum() > 1
    assert paid[ended].tolist() == pytest.approx(np.array(list(game.earned.values()))[ended].tolist())
    np.testing.assert_allclose(outcome.episode_return[ended], paid[ended])


@pytest.mark.parametrize("env", [Crowd, Rounds])
def test_a_restored_group_goes_on_as_the_one_that_was_saved(env: Any) -> None:
    into, outcome = views(env, "test/saved", 2)
    group = AgentGroup(env, agents=AGENTS, num_envs=2, seeds=SEEDS)
    played(group, into, outcome, 37)
    saved = group.snapshot()
    assert saved is not None
    other = AgentGroup(env, agents=AGENTS, num_envs=2, seeds=[0, 0])
    other.restore(saved)
    again = own_views(probe(EnvConfig(name="test/saved")), 6)
    for _ in range(50):
        acting, mask = into.acts.copy(), into.action_mask
        actions = np.zeros((6, 1), np.int32) if mask is None else mask.argmax(axis=1)[:, None].astype(np.int32)
        group.step(actions, None, into, outcome)
        other.step(actions, None, *again)
        for one, two in zip(outcome, again[1], strict=True):
            np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(into.acts, again[0].acts)
        entry = next(iter(into.observation))
        shown = into.acts
        np.testing.assert_array_equal(into.observation[entry][shown], again[0].observation[entry][shown])
        assert acting.any() or not outcome.valid.any()


class Fragile(Crowd):
    """Raises at the fourth step of its second episode."""

    def step(self, actions: Any) -> Any:
        if self.episode == 1 and self.time == 1:
            raise RuntimeError("the arm of ann broke")
        return super().step(actions)


def test_an_environment_that_raises_ends_the_run_with_its_own_error() -> None:
    into, outcome = views(Fragile, "test/fragile", 1)
    group = AgentGroup(Fragile, agents=AGENTS, num_envs=1, seeds=[3], first_index=7, name="test/fragile")
    with pytest.raises(EnvironmentFailure, match="environment 7 of test/fragile raised RuntimeError in its step"):
        played(group, into, outcome, 100)


def test_an_environment_that_raises_is_rebuilt_and_its_rows_are_masked() -> None:
    into, outcome = views(Fragile, "test/rebuilt", 1)
    group = AgentGroup(Fragile, agents=AGENTS, num_envs=1, seeds=[3], on_failure="restart", budget=RestartBudget(1))
    group.reset(into)
    while not group.failures:
        group.step(np.zeros((3, 1), np.int32), None, into, outcome)
    assert not outcome.valid.any()
    assert not outcome.reward.any()
    np.testing.assert_array_equal(into.reset, into.acts)
    assert into.acts.any()


class WithNaN(Crowd):
    """Shows NaN to bob."""

    def _seen(self, agents: Any) -> dict[str, Any]:
        seen = super()._seen(agents)
        if "bob" in seen and self.time == 1:
            seen["bob"][1] = np.nan
        return seen


def test_a_message_names_the_agent() -> None:
    into, outcome = views(WithNaN, "test/nan", 2)
    group = AgentGroup(WithNaN, agents=AGENTS, num_envs=2, seeds=SEEDS, name="test/nan", first_index=4)
    group.reset(into)
    with pytest.raises(NonFiniteObservation, match="agent 'bob' of environment 4 of test/nan"):
        group.step(np.zeros((6, 1), np.int32), None, into, outcome)


class Unpaid(Rounds):
    """Has no rewards behind the first action."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if self.time == 1:
            self._cumulative_rewards = dict.fromkeys(AGENTS)


def test_a_reward_that_is_none_names_the_agent() -> None:
    into, outcome = views(Rounds, "test/unpaid", 2)
    group = AgentGroup(Unpaid, agents=AGENTS, num_envs=2, seeds=SEEDS, name="test/unpaid", first_index=4)
    group.reset(into)
    assert into.action_mask is not None
    with pytest.raises(InvalidReward, match=r"agent '\w+' of environment \d of test/unpaid gave the reward None"):
        group.step(into.action_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)


class Narrow(Crowd):
    """Observations lose a number at some time."""

    def __init__(self, when: int) -> None:
        super().__init__()
        self.when = when

    def _seen(self, agents: Any) -> dict[str, Any]:
        return {name: seen[self.time == self.when :] for name, seen in super()._seen(agents).items()}


def test_an_observation_of_another_shape_names_the_agent() -> None:
    into, outcome = views(Crowd, "test/narrow", 2)
    group = AgentGroup(lambda: Narrow(2), agents=AGENTS, num_envs=2, seeds=SEEDS, name="test/narrow", first_index=4)
    group.reset(into)
    group.step(np.zeros((6, 1), np.int32), None, into, outcome)
    message = r"^agent '\w+' of environment 4 of test/narrow at group step 2: .* it has shape \(2,\)"
    with pytest.raises(UnsupportedSpace, match=message):
        group.step(np.zeros((6, 1), np.int32), None, into, outcome)


@pytest.mark.parametrize(("when", "time"), [(0, "reset"), (1, "step")])
def test_the_first_observations_of_another_shape_name_the_agent(when: int, time: str) -> None:
    register_env(f"test/narrow{when}", lambda: Narrow(when))
    message = rf"^test/narrow{when}, agent '\w+' at its first {time}: .* it has shape \(2,\)"
    with pytest.raises(UnsupportedSpace, match=message):
        probe(EnvConfig(name=f"test/narrow{when}"))


class Uneven(Crowd):
    """Agents with spaces of their own."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (3 + AGENTS.index(agent),), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4 + AGENTS.index(agent))

    def _seen(self, agents: Any) -> dict[str, Any]:
        seen = super()._seen(agents)
        return {agent: np.append(array, np.full(AGENTS.index(agent), 9)) for agent, array in seen.items()}


def test_different_spaces_share_rows_with_padding_and_a_mask() -> None:
    register_env("test/uneven", Uneven)
    spec = probe(EnvConfig(name="test/uneven"))
    assert spec.observation["obs"].shape == (5,)
    assert spec.action.categorical_sizes == (6,)
    assert spec.has_action_mask
    into, outcome = own_views(spec, 3)
    group = make_group(EnvConfig(name="test/uneven"), 1, [3], agents=spec.agents)
    group.reset(into)
    for _ in range(20):
        for row in np.flatnonzero(into.acts):
            assert into.observation["obs"][row, 3:].tolist() == [9.0] * row + [0.0] * (2 - row)
            assert into.action_mask[row].tolist() == [True] * (4 + row) + [False] * (2 - row)
        group.step(into.action_mask.argmax(axis=1)[:, None].astype(np.int32), None, into, outcome)


class Numbered(Rounds):
    """Names its agents by numbers, as some environments do."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [0, 1]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.time, self.episode, self.agents, self.agent_selection = 0, 0, [0, 1], 0
        self.rewards, self._cumulative_rewards = {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
        self.terminations, self.truncations = {0: False, 1: False}, {0: False, 1: False}
        self.infos = {0: {}, 1: {}}

    def observe(self, agent: Any) -> Any:
        return {"observation": np.full(3, self.time, np.float32), "action_mask": np.ones(4, np.int8)}

    def step(self, action: int | None) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.time += 1
        self.terminations = dict.fromkeys(self.terminations, self.time == 4)
        self.agent_selection = 1 - self.agent_selection


def test_agents_may_be_named_by_numbers() -> None:
    register_env("test/numbered", Numbered)
    spec = probe(EnvConfig(name="test/numbered"))
    assert spec.agents == ("0", "1")
    into, outcome = own_views(spec, 2)
    group = make_group(EnvConfig(name="test/numbered"), 1, [3], agents=spec.agents)
    group.reset(into)
    for step in range(8):
        assert into.acts.tolist() == [step % 2 == 0, step % 2 == 1]
        group.step(np.zeros((2, 1), np.int32), None, into, outcome)
        assert outcome.terminated.all() == (step % 4 == 3)


class Renamed(Crowd):
    """Has other agents each time."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        Renamed.built += 1
        if Renamed.built > 1:
            self.possible_agents = ["ann", "eve", "cid"]


def test_environments_of_a_group_have_the_same_agents() -> None:
    Renamed.built = 0
    with pytest.raises(UnsupportedSpace, match=r"\['ann', 'bob', 'cid'\] and another one \['ann', 'eve', 'cid'\]"):
        AgentGroup(Renamed, agents=AGENTS, num_envs=2, seeds=[0, 1])

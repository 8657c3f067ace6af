"""PettingZoo's interfaces as turns."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.agent_games import AGENTS, Crowd, Duck, Rounds

from rollmill.envs.agent_apis import (
    ConvertedGame,
    ParallelAgents,
    TurnTakers,
    is_multi_agent,
    takes_turns,
    with_numbers,
)
from rollmill.envs.errors import UnsupportedSpace


def test_the_interface_decides_how_an_environment_is_stepped() -> None:
    assert is_multi_agent(Crowd())
    assert not takes_turns(Crowd())
    assert isinstance(with_numbers(Crowd(), AGENTS), ParallelAgents)
    assert is_multi_agent(Rounds())
    assert takes_turns(Rounds())
    assert isinstance(with_numbers(Rounds(), AGENTS), TurnTakers)


class OneSide(gymnasium.Env[Any, Any]):
    """One player of a game whose agents it tells."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    possible_agents = AGENTS


def test_an_environment_of_gymnasium_has_one_agent() -> None:
    assert not is_multi_agent(OneSide())


def test_an_environment_that_selects_agents_is_one_in_which_they_take_turns() -> None:
    assert takes_turns(Duck())
    agents = with_numbers(Duck(), AGENTS)
    turn, paid = agents.reset(3), np.zeros(3)
    while not turn.is_over:
        (acting,) = turn.acting
        turn = agents.step([int(turn.shown[acting][0]["action_mask"].argmax())] * 3)
        for agent, reward in turn.rewards.items():
            paid[agent] += reward
    assert paid.all()


def test_connect_four_pays_both_players_when_it_ends() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    env = pettingzoo.make("aec", "classic/connect_four-v3")
    agents = with_numbers(env, env.possible_agents)
    turn = agents.reset(1)
    assert turn.acting == [0]
    for move in range(7):
        assert not turn.is_over
        assert not turn.ended
        acting = turn.acting[0]
        assert acting == move % 2
        turn = agents.step([acting, acting])  # each fills a column of its own
    assert turn.is_over
    assert turn.ended == {0: (True, False), 1: (True, False)}
    assert turn.rewards == {0: 1, 1: -1}
    assert not turn.shown


class Leaving(Crowd):
    """Bob leaves at the first step without being reported as ended."""

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "bob"]
        del terminated["bob"], truncated["bob"]
        return observations, rewards, terminated, truncated, infos


def test_an_agent_that_leaves_without_a_word_has_ended() -> None:
    agents = with_numbers(Leaving(), AGENTS)
    agents.reset(3)
    turn = agents.step([0, 0, 0])
    assert turn.ended == {1: (True, False)}
    assert 1 not in turn.acting


class Staying(Crowd):
    """Keeps ended agents in env.agents, as some wrappers do."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed, options)
        self.all = list(self.agents)
        return result

    def step(self, actions: Any) -> Any:
        self.agents = [agent for agent in self.agents if self.time < self.leaves[agent]]
        result = super().step({agent: actions[agent] for agent in self.agents})
        self.all += [agent for agent in self.agents if agent not in self.all]
        self.agents = list(self.all)
        return result


def test_an_agent_that_stays_after_its_end_does_not_act_again() -> None:
    agents = with_numbers(Staying(), AGENTS)
    turn = agents.reset(3)
    ended: set[int] = set()
    while not turn.is_over:
        assert not ended.intersection(turn.acting)
        turn = agents.step([0, 0, 0])
        assert not ended.intersection(turn.ended)
        ended |= set(turn.ended)
    assert ended == {0, 1, 2}


class Recording(Staying):
    """Keeps the actions that it gets."""

    space: spaces.Space[Any] = spaces.Discrete(4)
    taken: ClassVar[list[dict[str, Any]]] = []

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.space

    def step(self, actions: Any) -> Any:
        self.taken.append(actions)
        return super().step(dict.fromkeys(actions, 0))


@pytest.mark.parametrize(
    ("space", "idle"),
    [
        (spaces.Discrete(4, start=2), 2),
        (spaces.MultiDiscrete([2, 3]), [0, 0]),
        (spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 2.0], np.float32)), [0.0, 0.5]),
    ],
)
def test_an_agent_that_stays_after_its_end_gets_one_and_the_same_action(space: Any, idle: Any) -> None:
    env = Recording()
    env.space = space
    env.taken.clear()
    agents = with_numbers(env, AGENTS)
    turn = agents.reset(3)
    ended: set[int] = set()
    stale = 0
    while not turn.is_over:
        turn = agents.step(["ann's", "bob's", "cid's"])
        for agent, action in env.taken[-1].items():
            number = AGENTS.index(agent)
            if number in ended:
                assert action in space
                np.testing.assert_array_equal(action, idle)
                stale += 1
            else:
                assert action == f"{agent}'s"
        ended |= set(turn.ended)
    assert stale > 2


class Returning(Crowd):
    """Bob is away for a step, and is reported as ended before it or not."""

    ends_before = False

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        if self.time == 1:
            self.agents.remove("bob")
            terminated["bob"] = self.ends_before
        elif self.time == 2:
            self.agents.append("bob")
            observations |= self._seen(["bob"])
        return observations, rewards, terminated, truncated, infos


@pytest.mark.parametrize("ends_before", [False, True])
def test_an_agent_that_comes_back_in_the_same_episode_is_refused(ends_before: bool) -> None:
    env = Returning()
    env.ends_before = ends_before
    agents = with_numbers(env, AGENTS)
    for seed in range(2):
        agents.reset(seed)
        assert 1 not in agents.step([0, 0, 0]).acting
    with pytest.raises(UnsupportedSpace, match=r"'bob' is in env\.agents again after it has left it: .* next episode"):
        agents.step([0, 0, 0])


class Stranger(Crowd):
    """Lets an agent act that it never announced."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed, options)
        self.agents = ["eve"]
        return {"eve": np.zeros(3, np.float32)}, {"eve": {}}


def test_an_unknown_agent_is_named() -> None:
    with pytest.raises(UnsupportedSpace, match="has the agent 'eve', which is not among its possible_agents"):
        with_numbers(Stranger(), AGENTS).reset(0)


class Forgetful(Crowd):
    """Leaves Bob out of one of the dicts."""

    part = 0

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        del result[self.part]["bob"]
        return result


@pytest.mark.parametrize(("part", "what"), [(0, "observation"), (1, "reward")])
def test_an_agent_without_an_observation_or_a_reward_is_named(part: int, what: str) -> None:
    env = Forgetful()
    env.part = part
    agents = with_numbers(env, AGENTS)
    agents.reset(0)
    with pytest.raises(UnsupportedSpace, match=f"gave no {what} to agent 'bob': each agent in env.agents"):
        agents.step([0, 0, 0])


class Summing(Crowd):
    """Its dicts have an entry that is no agent's."""

    def step(self, actions: Any) -> Any:
        return tuple({**part, "__all__": 0.0} for part in super().step(actions))


def test_entries_that_are_no_agent_s_are_ignored() -> None:
    agents, plain = with_numbers(Summing(), AGENTS), with_numbers(Crowd(), AGENTS)
    agents.reset(3)
    plain.reset(3)
    turn, wanted = agents.step([1, 2, 3]), plain.step([1, 2, 3])
    assert turn.rewards == wanted.rewards
    assert turn.infos == wanted.infos


class OfGym(Crowd):
    """Its step returns what Gymnasium's vectors return."""

    def step(self, actions: Any) -> Any:
        return np.zeros((3, 3)), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool), {}


def test_a_step_without_dicts_is_explained() -> None:
    agents = with_numbers(OfGym(), AGENTS)
    agents.reset(0)
    with pytest.raises(UnsupportedSpace, match=r"returned \['ndarray', .*five dicts with an entry for each agent"):
        agents.step([0, 0, 0])


class Old(Crowd):
    """Returns observations alone, as PettingZoo before 1.23, or no infos with them."""

    has_infos = False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, _ = super().reset(seed, options)
        return (observations, None) if self.has_infos else observations


@pytest.mark.parametrize(("has_infos", "given"), [(False, "dict"), (True, r"\['dict', 'NoneType'\]")])
def test_a_reset_without_infos_is_explained(has_infos: bool, given: str) -> None:
    env = Old()
    env.has_infos = has_infos
    message = rf"returned {given}: \(observations, infos\) are needed.* needs agent_iter\(\) or"
    with pytest.raises(UnsupportedSpace, match=message):
        with_numbers(env, AGENTS).reset(0)


@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_tag_v3", "simple_speaker_listener_v4"])
@pytest.mark.parametrize("continuous", [False, True])
def test_a_converted_game_is_stepped_as_by_the_conversion(name: str, continuous: bool) -> None:
    module = pytest.importorskip(f"mpe2.{name}")
    _compare(lambda: module.parallel_env(max_cycles=7, continuous_actions=continuous))


@pytest.mark.slow
@pytest.mark.parametrize("id", ["butterfly/knights_archers_zombies-v11", "butterfly/pistonball-v6", "sisl/pursuit-v5"])
def test_agents_that_die_in_a_converted_game_do_so_as_by_the_conversion(id: str) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    kwargs = {"butterfly/pistonball-v6": {"n_pistons": 3, "max_cycles": 10}}.get(id, {"max_cycles": 120})
    _compare(lambda: pettingzoo.make("parallel", id, **kwargs), steps=250)


def _compare(make: Any, steps: int = 30) -> None:
    """Step two environments by the same actions, one of them as PettingZoo does it."""
    plain, fast = make(), make()
    game = ConvertedGame.under(fast)
    assert game is not None
    for episode in range(3):
        first, second = plain.reset(seed=episode), fast.reset(seed=episode)
        _assert_same(first, second)
        for agent in plain.possible_agents:
            plain.action_space(agent).seed(episode)
        for _ in range(steps):
            if not plain.agents:
                break
            actions = {agent: plain.action_space(agent).sample() for agent in plain.agents}
            _assert_same(plain.step(actions), game.step(actions))
            assert plain.agents == fast.agents
    plain.close()
    fast.close()


def _assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right) or isinstance(left, dict)
    if isinstance(left, dict):
        assert dict(left).keys() == dict(right).keys()
        for key in left:
            _assert_same(left[key], right[key])
    elif isinstance(left, tuple):
        for one, other in zip(left, right, strict=True):
            _assert_same(one, other)
    else:
        np.testing.assert_array_equal(left, right)


def test_a_conversion_of_the_users_own_is_stepped_itself() -> None:
    conversions = pytest.importorskip("pettingzoo.utils.conversions")
    simple = pytest.importorskip("mpe2.simple_v3")

    class Own(conversions.aec_to_parallel_wrapper):  # type: ignore[misc]  # importorskip returns Any
        pass

    env = Own(simple.env())
    assert ConvertedGame.under(env) is None


def test_a_wrapper_that_changes_the_game_stays_in_the_way() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    simple = pytest.importorskip("mpe2.simple_v3")
    taken: list[Any] = []

    class Recording(pettingzoo.utils.BaseWrapper):  # type: ignore[misc]  # importorskip returns Any
        def step(self, action: Any) -> None:
            taken.append(action)
            super().step(action)

    env = pettingzoo.utils.conversions.aec_to_parallel(Recording(simple.env()))
    agents = with_numbers(env, env.possible_agents)
    agents.reset(0)
    agents.step([3])
    assert taken == [3]


def test_a_converted_game_that_asks_its_agents_out_of_order_is_explained() -> None:
    conversions = pytest.importorskip("pettingzoo.utils.conversions")

    class Parallel(Rounds):
        metadata: ClassVar[dict[str, Any]] = {"name": "rounds", "is_parallelizable": True, "render_modes": []}
        render_mode = None

    agents = with_numbers(conversions.aec_to_parallel(Parallel()), AGENTS)
    agents.reset(0)

    def play() -> None:
        for _ in range(20):
            agents.step([0, 0, 0])

    with pytest.raises(RuntimeError, match="asks agent"):
        play()


class Undead(Rounds):
    """Does not remove agents that have ended."""

    def _was_dead_step(self, action: Any) -> None:
        pass


def test_an_agent_that_stays_after_its_end_is_named() -> None:
    agents = with_numbers(Undead(), AGENTS)
    agents.reset(0)

    def play() -> None:
        for _ in range(100):
            agents.step([0, 0, 0])

    with pytest.raises(UnsupportedSpace, match=r"has ended, but env.step\(None\) has left it in env.agents"):
        play()


class Respawning(Rounds):
    """Lets an agent that has ended come back."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if len(self.agents) == 2:
            back = next(name for name in AGENTS if name not in self.agents)
            self.agents.append(back)
            for of_agent, value in ((self.terminations, False), (self.truncations, False), (self.infos, {})):
                of_agent[back] = value
            self._cumulative_rewards[back] = self.rewards[back] = 0.0


def test_an_agent_that_comes_back_after_its_end_is_refused_where_agents_take_turns() -> None:
    agents = with_numbers(Respawning(), AGENTS)

    def play() -> None:
        for seed in range(20):
            turn = agents.reset(seed)
            while not turn.is_over:
                mask = turn.shown[turn.acting[0]][0]["action_mask"]
                turn = agents.step([int(mask.argmax())] * 3)

    with pytest.raises(UnsupportedSpace, match=r"is in env.agents again after it has left it"):
        play()


@pytest.mark.parametrize("names", [[], ["ann", "bob", "ann"]])
def test_agents_without_a_name_of_their_own_are_refused(names: list[str]) -> None:
    env = Crowd()
    env.possible_agents = names
    with pytest.raises(UnsupportedSpace, match=r"possible_agents .* each once"):
        with_numbers(env, names)

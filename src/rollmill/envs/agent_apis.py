"""PettingZoo's two interfaces of multi-agent environments as one: a step leads to a :class:`Turn`.

``ParallelAgents`` wraps environments whose agents act at the same time, ``TurnTakers`` those whose agents act one after
another (AEC). Neither needs the package pettingzoo: what counts is the interface.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rollmill.envs.actions import ActionCodec
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.shared_spaces import space_of
from rollmill.envs.spaces import action_spec


class Turn(NamedTuple):
    """What a step, or a reset, has led to; agents are given by their index.

    Attributes:
        rewards: Agent -> reward since the last turn; agents that are left out got none.
        ended: Agent -> (terminated, truncated), for agents whose episode ended.
        shown: Agent -> (observation, info), for agents that act next, and for truncated ones the final observation.
        acting: Agents that act next.
        infos: Agent -> what it was told with it, for agents whose episode ended, too.
        is_over: Whether the episode is over for all agents, so that a reset comes next.
    """

    rewards: dict[int, Any]
    ended: dict[int, tuple[bool, bool]]
    shown: dict[int, tuple[Any, Any]]
    acting: list[int]
    infos: dict[int, Any]
    is_over: bool


class Agents(Protocol):
    """A multi-agent environment whose agents have numbers."""

    env: Any

    def reset(self, seed: int | None) -> Turn:
        """Start an episode."""
        ...

    def step(self, actions: Sequence[Any]) -> Turn:
        """Step; ``actions`` holds one for each agent, and those of agents that do not act are ignored."""
        ...

    def observe(self, agent: int) -> tuple[Any, Any]:
        """Return an agent's present observation and info, whether or not it acts."""
        ...

    def has_terminated(self, agent: int) -> bool:
        """Whether an agent has terminated by now, although no turn has told so."""
        ...

    def owed(self, agent: int) -> Any:
        """Return the reward that an agent has earned since it was last told of one.

        Raises:
            UnsupportedSpace: The environment does not tell.
        """
        ...


class ParallelAgents:
    """An environment with PettingZoo's parallel interface. See :class:`Agents`.

    Agents may leave ``env.agents``, whether or not they are reported as ended, and may come late. They do not come back
    in the same episode. One that has ended and stays in ``env.agents`` no longer acts: the environment gets the same
    action for it at every step, the first choice and the numbers nearest to 0.

    Args:
        env: The environment; ``possible_agents`` is the order of the rows.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._stepped = ConvertedGame.under(env) or env
        self._agents = tuple(env.possible_agents)
        self._index = {name: index for index, name in enumerate(self._agents)}
        self._gone: set[Any] = set()  # they have ended
        self._left: set[Any] = set()  # they were in env.agents and are not now
        self._seen: tuple[Any, Any] = ({}, {})
        self._idle: dict[Any, Any] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore an environment of a checkpoint; those of earlier versions lack ``_idle``."""
        self.__dict__.update({"_idle": {}, **state})

    def reset(self, seed: int | None) -> Turn:
        """See :class:`Agents`."""
        self._gone, self._left = set(), set()
        self._seen = observations, infos = _pair(self.env.reset(seed=seed))
        acting = self._acting()
        return Turn({}, {}, self._shown(acting, observations, infos), acting, self._by_number(infos), not acting)

    def step(self, actions: Sequence[Any]) -> Turn:
        """See :class:`Agents`."""
        before = list(self.env.agents)
        chosen = {
            name: self._idle_action(name) if name in self._gone else actions[self._index[name]] for name in before
        }
        observations, rewards, terminations, truncations, infos = _five(self._stepped.step(chosen))
        self._seen = observations, infos
        now = set(self.env.agents)
        self._left |= set(before) - now
        if not self._left.isdisjoint(now):
            raise _returned(next(name for name in self.env.agents if name in self._left))
        ended = {}
        for name in before:
            if name in self._gone:
                continue
            terminated, truncated = bool(terminations.get(name, False)), bool(truncations.get(name, False))
            if not (terminated or truncated or name in now):
                terminated = True  # it left without being reported as ended
            if terminated or truncated:
                self._gone.add(name)
                ended[self._index[name]] = terminated, truncated
            if name not in rewards and (name in now or name in terminations):
                raise _missing("reward", "step", name)
        acting = self._acting()
        final = [agent for agent, (terminated, _) in ended.items() if not terminated]
        shown = self._shown([*acting, *final], observations, infos)
        return Turn(self._by_number(rewards), ended, shown, acting, self._by_number(infos), not acting)

    def observe(self, agent: int) -> tuple[Any, Any]:
        """See :class:`Agents`."""
        observations, infos = self._seen
        name = self._agents[agent]
        return observations[name], infos.get(name, {})

    def has_terminated(self, agent: int) -> bool:
        """See :class:`Agents`: never, because every step tells about all agents."""
        return False

    def owed(self, agent: int) -> Any:
        """See :class:`Agents`: nothing, because every step pays all agents."""
        return 0.0

    def _idle_action(self, name: Any) -> Any:
        if name not in self._idle:
            spec = action_spec(space_of("the environment", self.env, "action_space", name))
            self._idle[name] = ActionCodec(spec).decode_rows(
                np.zeros((1, spec.num_discrete), np.int32), np.zeros((1, spec.num_continuous), np.float32)
            )[0]
        return copy.copy(self._idle[name])

    def _acting(self) -> list[int]:
        return [self._number(name) for name in self.env.agents if name not in self._gone]

    def _number(self, name: Any) -> int:
        try:
            return self._index[name]
        except KeyError as error:
            raise _unknown(name, self._agents) from error

    def _by_number(self, given: Any) -> dict[int, Any]:
        """Return the entries of agents; PettingZoo allows others, such as "__all__"."""
        return {self._index[name]: entry for name, entry in given.items() if name in self._index}

    def _shown(self, agents: Sequence[int], observations: Any, infos: Any) -> dict[int, tuple[Any, Any]]:
        names, found = self._agents, {}
        for agent in agents:
            name = names[agent]
            if name not in observations:
                raise _missing("observation", "the last reset or step", name)
            found[agent] = observations[name], infos.get(name, {})
        return found


class ConvertedGame:
    """Steps a turn-based game to which PettingZoo has given the parallel interface (``aec_to_parallel``).

    What it does and returns is the same, in two thirds of the time for a small game: PettingZoo also observes for each
    agent before its action, and calls the game, and looks up each of its attributes, through wrappers that check the
    order of calls and the range of actions. The parallel interface and the action codec vouch for these.

    Args:
        wrapper: PettingZoo's conversion, which the agents that are left are told to.
        game: The turn-based game, or the first wrapper that does more than checking.
    """

    def __init__(self, wrapper: Any, game: Any) -> None:
        self._wrapper = wrapper
        self._game = game

    @classmethod
    def under(cls, env: Any) -> ConvertedGame | None:
        """Return the game if the environment is exactly PettingZoo's conversion of one, else None."""
        conversions = sys.modules.get("pettingzoo.utils.conversions")
        wrappers = sys.modules.get("pettingzoo.utils.wrappers")
        if conversions is None or wrappers is None or type(env) is not conversions.aec_to_parallel_wrapper:
            return None
        game = env.aec_env
        while type(game) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
            game = game.env
        return cls(env, game)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step every agent that is alive; see ``ParallelEnv.step``.

        Raises:
            RuntimeError: The game asks its agents in another order than that of ``agents``.
        """
        game = self._game
        rewards: dict[Any, Any] = dict.fromkeys(game.agents, 0)
        for name in game.agents:
            if name != game.agent_selection:
                raise RuntimeError(
                    f"the game asks agent {game.agent_selection!r} where agent {name!r} comes next in its agents: "
                    "agents of a game with the parallel interface must act in this order, and may only end behind the "
                    "last one's action"
                )
            game.step(actions[name])
            paid = game.rewards
            for other in game.agents:
                rewards[other] = rewards.get(other, 0) + paid[other]
        terminations, truncations, infos = dict(game.terminations), dict(game.truncations), dict(game.infos)
        observations = {name: game.observe(name) for name in game.agents}
        while game.agents and (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
            game.step(None)
        self._wrapper.agents = game.agents
        return observations, rewards, terminations, truncations, infos


class TurnTakers:
    """An environment with PettingZoo's AEC interface, in which agents act one after another. See :class:`Agents`.

    A step is the action of one agent. The steps of agents that have ended, which the interface asks for, are taken
    here. A reward reaches its agent when the agent is selected again, as ``env.last()`` gives it, or when the episode
    is over.

    Args:
        env: The environment; ``possible_agents`` is the order of the rows.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._agents = tuple(env.possible_agents)
        self._index = {name: index for index, name in enumerate(self._agents)}
        self._game = env
        self._asks_last = False
        self._gone: set[Any] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a game of a checkpoint; those of earlier versions lack ``_gone``."""
        self.__dict__.update({"_gone": set(), **state})

    def reset(self, seed: int | None) -> Turn:
        """See :class:`Agents`."""
        self.env.reset(seed=seed)
        self._gone.clear()
        # A wrapper may hold attributes of its own from its reset on.
        self._game = _holder_of_state(self.env)
        self._asks_last = _has_own_last(self.env)
        return self._until_one_acts()

    def step(self, actions: Sequence[Any]) -> Turn:
        """See :class:`Agents`."""
        self.env.step(actions[self._index[self._game.agent_selection]])
        return self._until_one_acts()

    def observe(self, agent: int) -> tuple[Any, Any]:
        """See :class:`Agents`."""
        name = self._agents[agent]
        return self.env.observe(name), self.env.infos.get(name, {})

    def has_terminated(self, agent: int) -> bool:
        """See :class:`Agents`: another agent's action may end it, which a turn tells only when it is selected."""
        return bool(self.env.terminations.get(self._agents[agent], False))

    def owed(self, agent: int) -> Any:
        """See :class:`Agents`."""
        try:
            owed = self._game._cumulative_rewards
        except AttributeError as error:
            raise UnsupportedSpace(
                "the environment has no _cumulative_rewards, but env.max_episode_steps truncates its episodes, which "
                "pays each agent what it has earned since its last turn: keep _cumulative_rewards (agent -> reward) as "
                "AECEnv._accumulate_rewards does, or leave env.max_episode_steps out and end the episodes yourself"
            ) from error
        return owed.get(self._agents[agent], 0.0)

    def _until_one_acts(self) -> Turn:
        """Take the steps of agents that have ended, until an agent that acts is selected or none is left."""
        env, game = self.env, self._game
        turn = Turn({}, {}, {}, [], {}, False)
        while game.agents:
            name = game.agent_selection
            if name not in self._index:
                raise _unknown(name, self._agents)
            agent = self._index[name]
            if self._asks_last:
                observation, reward, terminated, truncated, info = env.last()
            else:
                observation, reward, info = env.observe(name), game._cumulative_rewards[name], game.infos[name]
                terminated, truncated = game.terminations[name], game.truncations[name]
            turn.rewards[agent] = reward
            turn.infos[agent] = info
            if not (terminated or truncated):
                if name in self._gone:
                    raise _returned(name)
                turn.shown[agent] = observation, info
                turn.acting.append(agent)
                return turn
            if agent in turn.ended:
                raise UnsupportedSpace(
                    f"the agent {name!r} has ended, but env.step(None) has left it in env.agents and selected it "
                    "again: remove an agent there, as AECEnv._was_dead_step does"
                )
            turn.ended[agent] = bool(terminated), bool(truncated)
            self._gone.add(name)
            if not terminated:
                turn.shown[agent] = observation, info
            env.step(None)
        # An environment may end an episode by env.agents = [] alone, and selects no agent then to be told its reward.
        owed, infos = getattr(game, "_cumulative_rewards", {}), getattr(game, "infos", {})
        for agent, name in enumerate(self._agents):
            if agent not in turn.rewards and name in owed:
                turn.rewards[agent] = owed[name]
                if name not in self._gone:
                    turn.infos[agent] = infos.get(name, {})
        return turn._replace(is_over=True)


_STATE = ("agents", "agent_selection", "terminations", "truncations", "infos", "_cumulative_rewards")


def _holder_of_state(env: Any) -> Any:
    """Return the environment under those wrappers that only pass on what an AEC environment tells of its state.

    PettingZoo's wrappers look up an attribute in the next one, which for three of them takes as long as a small game's
    step.
    """
    base = sys.modules.get("pettingzoo.utils.wrappers.base")
    while base is not None and isinstance(env, base.BaseWrapper):
        if any(name in vars(env) or hasattr(type(env), name) for name in _STATE):
            break
        env = env.env
    return env


def _has_own_last(env: Any) -> bool:
    """Whether an AEC environment, or a wrapper, has a ``last()`` of its own."""
    interface = sys.modules.get("pettingzoo.utils.env")
    while interface is not None and getattr(type(env), "last", None) is interface.AECEnv.last:
        if not hasattr(env, "env") or not isinstance(env.env, interface.AECEnv):
            return False
        env = env.env
    return True


def with_numbers(env: Any, agents: Sequence[str]) -> Agents:
    """Wrap a multi-agent environment by its interface.

    Args:
        env: The environment, with PettingZoo's parallel or AEC interface.
        agents: The names of its agents, in the order of the rows.

    Raises:
        UnsupportedSpace: It has other agents.
    """
    if names_of(env) != tuple(agents):
        raise UnsupportedSpace(
            f"one environment has the possible_agents {list(agents)} and another one {list(env.possible_agents)}: all "
            "environments of a run need the same agents in the same order; let agents that are not needed stay out of "
            "env.agents"
        )
    return TurnTakers(env) if takes_turns(env) else ParallelAgents(env)


def names_of(env: Any) -> tuple[str, ...]:
    """Names of the agents of a multi-agent environment, which may give them as numbers.

    Raises:
        UnsupportedSpace: There are none, or two have the same name.
    """
    if env.possible_agents is None:
        raise UnsupportedSpace(
            "the environment has possible_agents=None: set possible_agents in its constructor to the list of all "
            "agents that may ever act"
        )
    names = tuple(map(str, env.possible_agents))
    if not names or len(set(names)) < len(names):
        raise UnsupportedSpace(
            f"the environment has the possible_agents {list(names)}: name there every agent that may ever act, "
            "each once"
        )
    return names


def is_multi_agent(env: Any) -> bool:
    """Whether an environment has PettingZoo's interface, rather than Gymnasium's.

    Some of Gymnasium's have agents, too, of a game that they play one side of.
    """
    if isinstance(env, gymnasium.Env | VectorEnv) and isinstance(getattr(env, "observation_space", None), spaces.Space):
        return False
    return hasattr(env, "possible_agents")


def takes_turns(env: Any) -> bool:
    """Whether the agents of a multi-agent environment act one after another (AEC)."""
    return hasattr(env, "agent_iter") or hasattr(env, "agent_selection")


def _pair(result: Any) -> tuple[Any, Any]:
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, dict) for part in result)):
        given = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
        raise UnsupportedSpace(
            f"reset of a multi-agent environment returned {given}: (observations, infos) are needed, "
            "two dicts with an entry for each agent; only an environment whose agents take turns returns nothing, and "
            "needs agent_iter() or, from its constructor on, agent_selection"
        )
    return result


def _five(result: Any) -> tuple[Any, ...]:
    if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(part, dict) for part in result)):
        given = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
        raise UnsupportedSpace(
            f"step of a multi-agent environment returned {given}: (observations, rewards, terminations, truncations, "
            "infos) are needed, five dicts with an entry for each agent"
        )
    return result


def _missing(what: str, where: str, name: object) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"{where} gave no {what} to agent {name!r}: each agent in env.agents, and each whose episode ended with the "
        "step, needs an entry in the dicts that reset and step return; let agents that are not there leave env.agents"
    )


def _returned(name: object) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"the agent {name!r} is in env.agents again after it has left it: an agent that has left may come back only "
        "in the next episode; keep an agent that pauses in env.agents, and give it an observation at every step"
    )


def _unknown(name: object, agents: Sequence[Any]) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"the environment has the agent {name!r}, which is not among its possible_agents {list(agents)}: list every "
        "agent there that may ever act"
    )

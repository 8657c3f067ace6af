"""Multi-agent environments for tests, and what plain loops over them see: turns of each agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

AGENTS = ["ann", "bob", "cid"]


class Crowd(ParallelEnv):
    """Agents act at the same time; one comes late, and each dies, is truncated or stays until the end.

    Observes (episode, time, agent). Everything follows from the seed and the episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "crowd"}

    def __init__(self) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.episode = -1
        self.key = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.key = seed
        self.episode += 1
        self.time = 0
        random = np.random.default_rng([self.key, self.episode])
        self.leaves = {agent: int(random.integers(2, 9)) for agent in AGENTS}
        self.ends = {agent: str(random.choice(["terminated", "truncated"])) for agent in AGENTS}
        self.comes = int(random.integers(0, 3))
        self.agents = AGENTS[: 3 if self.comes == 0 else 2]
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents), "an action is needed for each living agent, and for no other"
        self.time += 1
        before = list(self.agents)
        rewards = {agent: self.time + 0.25 * actions[agent] for agent in before}
        gone = [agent for agent in before if self.time >= self.leaves[agent]]
        terminated = {agent: agent in gone and self.ends[agent] == "terminated" for agent in before}
        truncated = {agent: agent in gone and self.ends[agent] == "truncated" for agent in before}
        self.agents = [agent for agent in before if agent not in gone]
        if self.time == self.comes and self.agents:
            self.agents = [*self.agents, AGENTS[2]]
            self.leaves[AGENTS[2]] += self.time
        return (
            self._seen({*before, *self.agents}),
            rewards,
            terminated,
            truncated,
            {agent: {} for agent in {*before, *self.agents}},
        )

    def _seen(self, agents: Any) -> dict[str, Any]:
        return {agent: np.array([self.episode, self.time, AGENTS.index(agent)], np.float32) for agent in agents}


class Dials(Crowd):
    """Crowd with actions that are numbers."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(np.isfinite(action).all() for action in actions.values())
        return super().step({agent: float(action[0]) for agent, action in actions.items()})


class Rounds(AECEnv):
    """Agents act one after another in an irregular order; an action pays all of them, and some drop out.

    Observes (episode, time, agent), and gives a mask that forbids one of four actions.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "rounds"}

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.episode = -1
        self.key = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {"observation": spaces.Box(-100, 100, (3,), np.float32), "action_mask": spaces.Box(0, 1, (4,), np.int8)}
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def observe(self, agent: str) -> Any:
        place = AGENTS.index(agent)
        mask = np.ones(4, np.int8)
        mask[(self.time + place) % 4] = 0
        return {"observation": np.array([self.episode, self.time, place], np.float32), "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.key = seed
        self.episode += 1
        self.time = 0
        self.random = np.random.default_rng([self.key, self.episode])
        self.agents = list(AGENTS)
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos = {agent: {} for agent in AGENTS}
        self.length = int(self.random.integers(2, 14))
        self.agent_selection = str(self.random.choice(self.agents))

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        assert self.observe(agent)["action_mask"][action], "a forbidden action"
        self.time += 1
        self._cumulative_rewards[agent] = 0.0
        living = [one for one in self.agents if not (self.terminations[one] or self.truncations[one])]
        self.rewards = {one: (self.time + 0.25 * action if one in living else 0.0) for one in self.agents}
        if self.time >= self.length:
            ends = self.terminations if self.random.random() < 0.5 else self.truncations
            for one in living:
                ends[one] = True
        elif len(living) > 1 and self.random.random() < 0.15:
            loser = str(self.random.choice(living))
            self.terminations[loser] = True
        self._accumulate_rewards()
        living = [one for one in self.agents if not (self.terminations[one] or self.truncations[one])]
        self.agent_selection = str(self.random.choice(living)) if living else self.agents[0]
        self._deads_step_first()


class Duck:
    """Has PettingZoo's AEC interface, but neither the base class nor what only its methods need."""

    def __init__(self) -> None:
        self.game = Rounds()
        self.game.agent_selection = AGENTS[0]

    def __getattr__(self, name: str) -> Any:
        if name in ("game", "agent_iter", "_cumulative_rewards"):
            raise AttributeError(name)
        return getattr(self.game, name)


@dataclass
class Seen:
    """One turn of an agent: x_t and a_t, the rewards until its next turn, and how the episode ended with it."""

    observation: tuple[float, ...]
    action: int
    reward: float = 0.0
    end: str = ""
    final: tuple[float, ...] | None = None
    first: bool = False


Choose = Callable[[int, tuple[float, ...]], int]


def choose(agent: int, observation: tuple[float, ...]) -> int:
    """A choice that follows from what is seen, so that two loops act alike; always allowed by the mask of Rounds."""
    episode, time, place = observation
    return int(time + place + 1 + (episode + time) % 3) % 4


def plain_turns(env: Any, seed: int, episodes: int) -> list[list[list[Seen]]]:
    """Play episodes as PettingZoo's documentation does; returns the turns of each episode and agent."""
    played = []
    for episode in range(episodes):
        env_seed = seed if episode == 0 else None
        turns = _of_rounds(env, env_seed) if isinstance(env, AECEnv) else _of_crowd(env, env_seed)
        played.append([turns[agent] for agent in AGENTS])
    return played


def _of_rounds(env: Any, seed: int | None) -> dict[str, list[Seen]]:
    env.reset(seed=seed)
    turns: dict[str, list[Seen]] = {agent: [] for agent in AGENTS}
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        seen = tuple(observation["observation"].tolist())
        if turns[agent]:
            turns[agent][-1].reward += reward
        if terminated or truncated:
            if turns[agent]:
                turns[agent][-1].end = "terminated" if terminated else "truncated"
                turns[agent][-1].final = None if terminated else seen
            env.step(None)
            continue
        action = choose(AGENTS.index(agent), seen)
        turns[agent].append(Seen(seen, action, first=not turns[agent]))
        env.step(action)
    return turns


def _of_crowd(env: Any, seed: int | None) -> dict[str, list[Seen]]:
    observations, _ = env.reset(seed=seed)
    turns: dict[str, list[Seen]] = {agent: [] for agent in AGENTS}
    while env.agents:
        actions = {}
        for agent in env.agents:
            seen = tuple(observations[agent].tolist())
            actions[agent] = choose(AGENTS.index(agent), seen)
            turns[agent].append(Seen(seen, actions[agent], first=not turns[agent]))
        observations, rewards, terminations, truncations, _ = env.step(actions)
        for agent in actions:
            turns[agent][-1].reward += rewards[agent]
            if terminations[agent]:
                turns[agent][-1].end = "terminated"
            elif truncations[agent]:
                turns[agent][-1].end, turns[agent][-1].final = "truncated", tuple(observations[agent].tolist())
    return turns

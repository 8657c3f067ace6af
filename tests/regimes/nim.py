"""A game that is solved: who leaves a multiple of four matches wins."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

MATCHES = 7


class Nim(AECEnv):
    """Two players take one to three matches in turn; who takes the last one wins."""

    metadata: ClassVar[dict[str, Any]] = {"name": "nim"}
    possible_agents: ClassVar[list[str]] = ["first", "second"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"matches": spaces.Discrete(MATCHES + 1), "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        return {"matches": self.matches, "action_mask": (np.arange(3) < self.matches).astype(np.int8)}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.matches = MATCHES
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        self._cumulative_rewards[agent] = 0.0
        self.matches -= action + 1
        self._clear_rewards()
        if self.matches == 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.possible_agents, True)
        self._accumulate_rewards()
        self.agent_selection = other

"""Which policy plays which agent of an environment, from the start of an episode to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime.definitions import Registry
from rollmill.runtime.row_noise import RowNoise
from rollmill.settings.value_checks import ConfigError

AssignmentRule = Callable[[str, int, int], str]
"""``rule(agent, env, episode)`` returns the name of the policy that plays."""

AUTO, RANDOM, FIXED = "auto", "random", "fixed"

ASSIGNMENTS: Registry[AssignmentRule] = Registry(
    "assignment", {}, register="register_assignment", reserved=(AUTO, RANDOM, FIXED), error=ConfigError
)


def register_assignment(name: str, rule: AssignmentRule) -> None:
    """Make ``population.assignment=name`` let a function decide which policy plays which agent.

    Rollout workers call it, so register it in a module that is imported everywhere (``--import``).

    Args:
        name: A new name.
        rule: ``rule(agent, env, episode)``, called when an episode begins, returns the name of a policy or a guest. The
            agent is its name ("" where the environment has one agent), ``env`` the index of the environment in the
            run, ``episode`` how many have begun in it, from 1. In lockstep it must depend on nothing else.

    Raises:
        ValueError: The name is taken by another function.
    """
    ASSIGNMENTS.register(name, rule)


class Assignment:
    """Gives each agent one of the policies that may play it.

    Draws depend on nothing but the seed, the environment and the step, so that workers may differ.

    Args:
        allowed: For each agent, the policies that may play it.
        is_random: Whether to draw for each episode. Otherwise policies have the same environments for the whole run:
            with several agents, environments and agents within them take the policies in turn; with one, each policy
            has environments that follow each other, so that few of them share a group, whose rows a network infers
            together.
        num_envs: Environments of the whole run.
        seed: Keys the draws.
        rule: Decides instead: given an agent's index, its environment and the episode, returns the player; None for
            none.
    """

    def __init__(
        self,
        allowed: Sequence[Sequence[int]],
        *,
        is_random: bool,
        num_envs: int,
        seed: int,
        rule: Callable[[int, int, int], int] | None = None,
    ) -> None:
        self._allowed = [np.array(policies, np.int16) for policies in allowed]
        self._is_random = is_random
        self._num_envs = num_envs
        self._rule = rule
        self._noise = RowNoise(seed, "policies", width=len(allowed))

    def assign(self, envs: NDArray[np.int64], episodes: NDArray[np.int64], step: int) -> NDArray[np.int16]:
        """Return who plays the agents of some environments of a group, int16 ``[n, agents]``.

        Args:
            envs: int64 ``[n]``, their indices among those of the whole run.
            episodes: int64 ``[n]``, episodes that these have begun.
            step: Steps that the group has made, all slots counted.
        """
        if (rule := self._rule) is not None:
            agents, begun = range(len(self._allowed)), list(zip(envs.tolist(), episodes.tolist(), strict=True))
            return np.array([[rule(agent, env, episode) for agent in agents] for env, episode in begun], np.int16)
        if self._is_random:
            drawn = self._noise.uniform(envs, np.full(len(envs), step))
            columns = [p[(drawn[:, agent] * len(p)).astype(np.int64)] for agent, p in enumerate(self._allowed)]
        elif len(self._allowed) > 1:
            columns = [policies[(envs + agent) % len(policies)] for agent, policies in enumerate(self._allowed)]
        else:
            columns = [policies[envs * len(policies) // self._num_envs] for policies in self._allowed]
        return np.stack(columns, axis=1)

"""Which policy plays which agent of an environment, from the start of an episode to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


SLOTS_OF_A_DRAW, EPISODES_OF_A_DRAW = 4, 4
"""What matches of a group that share a draw fill at least, where they do: slots, and episodes of each environment.

Few rows of many policies make slow forward passes. With fewer episodes of each, the last ones with one policy overlap
the first with the next for much of the time (docs/journal/2026-11.md); with more, a policy waits long for its turn.
"""


class Assignment:
    """Gives each agent one of the policies that may play it.

    Draws for single matches depend on nothing but the seed, the environment and the step, so that workers may differ.

    Args:
        allowed: For each agent, the policies that may play it.
        is_random: Whether to draw for each episode. Otherwise policies have the same environments for the whole run:
            with several agents, environments and agents within them take the policies in turn; with one, each policy
            has environments that follow each other, so that few of them share a group, whose rows a network infers
            together.
        num_envs: Environments of the whole run.
        seed: Keys the draws.
        envs_per_group: If given, matches that begin in a group one after the other share a draw, for some slots and
            episodes, and take its policies in turns of seats where these may play any of them. Each policy plays as
            often as with a draw for each match; a group's rows are played by few policies at a time. Not in lockstep,
            where every policy must play in every iteration.
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
        envs_per_group: int | None = None,
        rule: Callable[[int, int, int], int] | None = None,
    ) -> None:
        self._allowed = [np.array(policies, np.int16) for policies in allowed]
        self._is_random = is_random
        self._num_envs = num_envs
        self._rule = rule
        self._envs_per_group = envs_per_group
        self._any_seat = len(set(map(tuple, allowed))) == 1
        self._noise = RowNoise(seed, "policies", width=len(allowed))
        self._strides = _strides(len(allowed))
        self._shared: dict[int, _SharedDraw] = {}

    def assign(
        self, envs: NDArray[np.int64], episodes: NDArray[np.int64], *, group: int, iteration: int, step: int
    ) -> NDArray[np.int16]:
        """Return who plays the agents of some environments of a group, int16 ``[n, agents]``.

        Args:
            envs: int64 ``[n]``, their indices among those of the whole run.
            episodes: int64 ``[n]``, episodes that these have begun.
            group: Index of the group among those of the whole run.
            iteration: Slots that the group has filled.
            step: Steps that it has made, all slots counted.
        """
        agents = len(self._allowed)
        if (rule := self._rule) is not None:
            begun = list(zip(envs.tolist(), episodes.tolist(), strict=True))
            return np.array(
                [[rule(agent, env, episode) for agent in range(agents)] for env, episode in begun], np.int16
            )
        if not self._is_random:
            return self._divided(envs)
        if self._envs_per_group is None:
            return self._picked(self._noise.uniform(envs, np.full(len(envs), step)))
        shared = self._shared.setdefault(group, _SharedDraw(self._envs_per_group, iteration))
        # A sequence of low discrepancy, of which the groups have elements in turn: few of them draw the same policies
        # at a time, and all policies and pairs have soon been drawn.
        groups = max(1, self._num_envs // self._envs_per_group)
        element = shared.number(len(envs), iteration) * groups + group % groups
        start = self._noise.uniform(np.zeros(1, np.int64), np.zeros(1, np.int64))
        drawn = self._picked((start + element * self._strides) % 1.0)[0]
        if not self._any_seat:
            return np.tile(drawn, (len(envs), 1))
        seats = (np.arange(agents) + (envs + episodes)[:, None]) % agents
        found: NDArray[np.int16] = drawn[seats]
        return found

    def _picked(self, uniform: NDArray[np.floating[Any]]) -> NDArray[np.int16]:
        """Map numbers in [0, 1), ``[n, agents]``, to policies."""
        columns = [p[(uniform[:, agent] * len(p)).astype(np.int64)] for agent, p in enumerate(self._allowed)]
        return np.stack(columns, axis=1)

    def _divided(self, envs: NDArray[np.int64]) -> NDArray[np.int16]:
        if len(self._allowed) > 1:
            columns = [policies[(envs + agent) % len(policies)] for agent, policies in enumerate(self._allowed)]
        else:
            columns = [policies[envs * len(policies) // self._num_envs] for policies in self._allowed]
        return np.stack(columns, axis=1)


class _SharedDraw:
    """Counts the draws of a group, each of which serves some slots and some episodes.

    Args:
        envs: Environments of the group.
        iteration: Slots that it has filled.
    """

    def __init__(self, envs: int, iteration: int) -> None:
        self._envs = envs
        self._number = self._begun = 0
        self._first_iteration = iteration

    def number(self, begun: int, iteration: int) -> int:
        """Return the number of the draw for matches that begin; the first is 0.

        Args:
            begun: Matches that begin now.
            iteration: Slots that the group has filled.
        """
        has_slots = iteration >= self._first_iteration + SLOTS_OF_A_DRAW
        if has_slots and self._begun >= EPISODES_OF_A_DRAW * self._envs:
            self._number, self._begun, self._first_iteration = self._number + 1, 0, iteration
        self._begun += begun
        return self._number


def _strides(dimensions: int) -> NDArray[np.float64]:
    """Return the steps of an additive recurrence that fills a unit cube evenly, float64 ``[dimensions]``.

    The generalised golden ratio: powers of 1/g, g being the root of x^(d + 1) = x + 1 (Roberts 2018,
    https://extremelearning.com.au/unreasonable-effectiveness-of-quasirandom-sequences/).
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    return ratio ** -np.arange(1.0, dimensions + 1)

"""A group of environments with its own arrays, stepped by an agent. Evaluation uses it instead of slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollmill.envs.views import Group, ObservationView, OutcomeView, own_views
from rollmill.evaluation.agent import Agent
from rollmill.specs import EnvSpec

__all__ = ["Step", "play"]


class Step(NamedTuple):
    """One step of all rows. The arrays are overwritten by the next step.

    Attributes:
        observation: Observations after the step.
        outcome: Results of the actions.
    """

    observation: ObservationView
    outcome: OutcomeView


def play(agent: Agent, group: Group, spec: EnvSpec, *, deterministic: bool | None) -> Iterator[Step]:
    """Reset a group, then step it for as long as the caller iterates; the agent's state is reset with its episodes.

    Args:
        agent: The agent.
        group: The environments; the caller closes them.
        spec: The environment's spec.
        deterministic: As in ``Agent.act``.
    """
    observation, outcome = own_views(spec, group.num_rows)
    agent.reset()
    group.reset(observation)
    while True:
        agent.reset(observation.reset)
        discrete, continuous = agent.choose(observation.observation, observation.action_mask, deterministic)
        group.step(discrete, continuous, observation, outcome)
        yield Step(observation, outcome)

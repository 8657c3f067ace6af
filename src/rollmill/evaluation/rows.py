"""A group of environments with its own arrays, stepped by an agent. Evaluation uses it instead of slots."""

from __future__ import annotations

from collections.abc import Iterator

from rollmill.envs.views import Group, OutcomeView, own_views
from rollmill.evaluation.agent import Agent
from rollmill.specs import EnvSpec


def play(agent: Agent, group: Group, spec: EnvSpec, *, deterministic: bool | None) -> Iterator[OutcomeView]:
    """Reset a group, then step it for as long as the caller iterates; the agent's state is reset with its episodes.

    Yields the results of each step, in arrays that the next one overwrites.

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
        discrete, continuous = agent.choose(
            observation.observation, observation.action_mask, deterministic, acts=observation.acts
        )
        group.step(discrete, continuous, observation, outcome)
        yield outcome

"""The probe's first step of an environment, with random actions as in training: it finds unfit results early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollmill.envs.actions import ActionCodec
from rollmill.envs.agent_apis import Agents
from rollmill.envs.checks import as_number, check_fit, invalid_reward, shown
from rollmill.envs.errors import InvalidActionMask, RollmillEnvError, UnsupportedSpace, failures
from rollmill.envs.failures import RestartBudget, failure
from rollmill.envs.random_actions import random_actions
from rollmill.envs.shared_spaces import SharedSpaces, mask_in
from rollmill.envs.spaces import ACTION_MASK, ObservationCodec
from rollmill.specs import ActionSpec, BoxHead


def try_step(name: str, env: Any, codec: ObservationCodec, spec: ActionSpec, budget: RestartBudget | None) -> None:
    """Step once with a random action, as in training, to detect unfit results early."""
    action = _random_actions(spec, 1)[0]
    try:
        result = env.step(action)
    except failures() as error:
        raise failure(name, 0, "step", 1, error, budget) from error
    if not (isinstance(result, tuple) and len(result) == 5):
        raise UnsupportedSpace(
            f"{name}: step returned {type(result).__name__} of {len(result) if isinstance(result, tuple) else 1} "
            "instead of (observation, reward, terminated, truncated, info): Gymnasium 1.x is needed"
        )
    if not isinstance(result[4], dict):
        raise UnsupportedSpace(f"{name}: step returned {result[4]!r} as info: a dict is needed, which may be empty")
    for what, flag in zip(("terminated", "truncated"), result[2:4], strict=True):
        if isinstance(flag, (str, bytes, list, tuple, dict, set)):  # truthy in Python unless empty
            raise UnsupportedSpace(
                f"{name}: step returned {shown(flag)} of type {type(flag).__name__} as {what}: True or False is needed"
            )
    check_fit(codec, result[0], name, " at its first step")
    try:
        as_number(result[1])
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid_reward(name, result[1], " at its first step") from error
    if ACTION_MASK in result[4]:
        raise _late_mask(name)


def try_turn(
    name: str,
    game: Agents,
    spaces: SharedSpaces,
    agents: Sequence[str],
    spec: ActionSpec,
    budget: RestartBudget | None,
) -> None:
    """Step once with a random action of each agent, to detect unfit results early."""
    codec = ObservationCodec(spaces.observation)
    try:
        turn = game.step(_random_actions(spec, len(agents)))
    except RollmillEnvError:
        raise
    except failures() as error:
        raise failure(name, 0, "step", 1, error, budget) from error
    for agent, (observation, info) in turn.shown.items():
        check_fit(codec, spaces.pad(observation, agent), f"{name}, agent {agents[agent]!r}", " at its first step")
        if mask_in(observation, info) is not None:
            raise _late_mask(name)
    for agent, reward in turn.rewards.items():
        try:
            as_number(reward)
        except (TypeError, ValueError, OverflowError) as error:
            raise invalid_reward(f"{name}, agent {agents[agent]!r}", reward, " at its first step") from error


def _random_actions(spec: ActionSpec, rows: int) -> list[Any]:
    """Draw an action for each row, as the environment gets it in training."""
    random = np.random.default_rng(0)
    # Without an array over all choices: there may be millions.
    sizes = spec.categorical_sizes
    discrete = random.integers(sizes, size=(rows, len(sizes)), dtype=np.int32)
    numbers = replace(spec, heads=tuple(head for head in spec.heads if isinstance(head, BoxHead)))
    return ActionCodec(spec).decode_rows(discrete, random_actions(numbers, None, rows, random)[1])


def _late_mask(name: str) -> InvalidActionMask:
    return InvalidActionMask(
        f"{name} gives info[{ACTION_MASK!r}] with a step but not with reset: give it with every reset and every step"
    )

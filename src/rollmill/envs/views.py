"""Views of one step of a slot, and the protocol of a group of environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollmill.envs.info_metrics import InfoMetrics
from rollmill.specs import EnvSpec

Array = np.ndarray[Any, np.dtype[Any]]


class ObservationView(NamedTuple):
    """``x_{t+1}``: the environments' observations, written in place.

    Attributes:
        observation: Name -> ``[B, ...]``, dtypes and shapes of ``EnvSpec.observation``.
        action_mask: bool ``[B, M]``, True where allowed; None if the environment has no mask.
        reset: bool ``[B]``: whether this is the first observation of an episode.
        acts: bool ``[B]``: whether the row's agent chooses an action; None if environments have one agent.
    """

    observation: Mapping[str, Array]
    action_mask: Array | None
    reset: Array
    acts: Array | None = None


class OutcomeView(NamedTuple):
    """The results of ``a_t``, written in place; see ``rollmill.specs`` for the time axis.

    Attributes:
        reward: float32 ``[B]``, raw.
        terminated: bool ``[B]``.
        truncated: bool ``[B]``.
        valid: bool ``[B]``: whether the step is a transition to learn from.
        episode_return: float32 ``[B]``: sum of raw rewards of the episode that ended with this step, NaN elsewhere.
        episode_length: int32 ``[B]``: its length in agent steps, 0 elsewhere.
        reward_terms: float32 ``[B, R]``: parts of the reward that learners weigh; None without any.
        episode_objective: float32 ``[B]``: what the episode that ended with this step was worth by the task's own
            measure, NaN where that was not given; None if it is not needed.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    episode_return: Array
    episode_length: Array
    reward_terms: Array | None = None
    episode_objective: Array | None = None


def own_views(spec: EnvSpec, rows: int) -> tuple[ObservationView, OutcomeView]:
    """Allocate views outside of slots, with zeros and masks that allow everything."""
    return (
        ObservationView(
            {name: np.zeros((rows, *item.shape), item.dtype) for name, item in spec.observation.items()},
            np.ones((rows, spec.action.mask_size), bool) if spec.has_action_mask else None,
            np.zeros(rows, bool),
            np.ones(rows, bool) if spec.agents else None,
        ),
        OutcomeView(
            reward=np.zeros(rows, np.float32),
            terminated=np.zeros(rows, bool),
            truncated=np.zeros(rows, bool),
            valid=np.zeros(rows, bool),
            episode_return=np.zeros(rows, np.float32),
            episode_length=np.zeros(rows, np.int32),
        ),
    )


class Group(Protocol):
    """``num_rows`` rows that are stepped together. Owns its environments."""

    num_rows: int
    failures: list[str]

    def reset(self, into: ObservationView) -> None:
        """Start every row's first episode and write ``x_0``."""
        ...

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Apply ``a_t`` (int32 ``[B, Kd]``, float32 ``[B, Kc]``), write ``x_{t+1}`` and the results."""
        ...

    def close(self) -> None:
        """Close the environments; may be called twice."""
        ...


class SavableGroup(Group, Protocol):
    """A group whose state can be saved and restored."""

    @property
    def metrics(self) -> InfoMetrics:
        """What the environments give in ``info["metrics"]``."""
        ...

    @property
    def observation_space(self) -> Any:
        """The Gymnasium space of a row's observation."""
        ...

    @property
    def action_space(self) -> Any:
        """The Gymnasium space of a row's action."""
        ...

    def snapshot(self) -> bytes | None:
        """Return the group's state; None if its environments cannot be saved."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Restore the state of :meth:`snapshot`, instead of a reset."""
        ...


class AgentRows(SavableGroup, Protocol):
    """A group whose rows are agents.

    Attributes:
        episodes: int64 ``[num_envs]``, how often each environment has begun an episode.
        resets_next: bool ``[num_envs]``, whether an environment's episode is over and the next step resets it.
    """

    episodes: Array
    resets_next: Array

    @property
    def rebuilds(self) -> Array:
        """int64 ``[num_envs]``, how often each environment has been rebuilt; its episode does not count then."""
        ...

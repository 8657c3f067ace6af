"""Players of matches: trained agents, and scripted players by name.

A scripted player is a function of an observation and a mask of allowed actions::

    import numpy as np
    import rollmill


    def make_leftmost():
        def choose(observation, mask):
            return np.flatnonzero(mask)[0]

        return choose


    rollmill.register_player("leftmost", make_leftmost)

and then ``rollmill tournament RUN_DIR leftmost --import leftmost.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.actions import ActionCodec
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import Array, ObservationView
from rollmill.runtime.definitions import Registry
from rollmill.runtime.seeds import stream
from rollmill.specs import ActionSpec, BoxActions
from rollmill.storage.population_config import RANDOM_PLAYER

if TYPE_CHECKING:
    from rollmill.evaluation.agent import Agent

Choose = Callable[[Any, "NDArray[np.bool_] | None"], Any]
"""``choose(observation, mask)`` returns a choice, one for each head, or real numbers; see :func:`register_player`."""

PlayerFactory = Callable[[], Choose]


class PlayerError(ValueError):
    """A player is not known, or chose what the environment does not allow."""


PLAYERS: Registry[PlayerFactory] = Registry(
    "player", {}, register="register_player", reserved=(RANDOM_PLAYER,), error=PlayerError
)


def register_player(name: str, factory: PlayerFactory) -> None:
    """Make ``name`` a player of matches (``rollmill tournament``).

    Args:
        name: A new name; "random" is built in.
        factory: Returns a function ``choose(observation, mask)``, which is called for one agent at a time. The
            observation is the agent's array in the environment's own shape and dtype (float64 becomes float32, choices
            one-hot), or a dict of arrays where there are several. ``mask`` is bool ``[M]``, the allowed choices of all
            heads one after another, or None without masks. It returns an integer for a ``Discrete`` action, otherwise
            an array: the choices of all heads, counted from 0, then the real numbers, as the environment takes them.

    Raises:
        ValueError: The name is taken by another factory.
    """
    PLAYERS.register(name, factory)


def player_factory(name: str, setting: str = "") -> PlayerFactory:
    """Return what makes a registered player.

    Args:
        name: Its name; nothing in the file system is called so.
        setting: The setting that gives it, for messages.

    Raises:
        PlayerError: There is none of this name.
    """
    if os.sep in name and name not in PLAYERS:
        given = f"{setting}={name!r}: this player" if setting else f"player {name!r}"
        raise PlayerError(f"{given} is no run directory and no checkpoint file: there is nothing of this name")
    return PLAYERS.find(name, setting)


class Player(Protocol):
    """Chooses actions for some rows of a group.

    Attributes:
        name: Its name in results.
    """

    name: str

    def begin(self) -> None:
        """Prepare for another group."""
        ...

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """Forget the past of rows, bool ``[B]``, in which an episode begins."""
        ...

    def choose(self, view: ObservationView, rows: NDArray[np.bool_]) -> tuple[Array | None, Array | None]:
        """Choose actions.

        Args:
            view: What all rows observe.
            rows: bool ``[B]``: the rows that this player acts for.

        Returns:
            int32 ``[B, Kd]`` and float32 ``[B, Kc]``, of which only the given rows count; None without such heads.
        """
        ...


class AgentPlayer:
    """A trained agent. See :class:`Player`.

    Args:
        name: Its name in results.
        agent: The agent.
        deterministic: As in ``Agent.act``.
    """

    def __init__(self, name: str, agent: Agent, *, deterministic: bool | None) -> None:
        self.name = name
        self._agent = agent
        self._deterministic = deterministic

    def begin(self) -> None:
        """See :class:`Player`."""
        self._agent.reset()

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """See :class:`Player`."""
        self._agent.reset(rows)

    def choose(self, view: ObservationView, rows: NDArray[np.bool_]) -> tuple[Array | None, Array | None]:
        """See :class:`Player`."""
        return self._agent.choose(view.observation, view.action_mask, self._deterministic, acts=rows)


class RandomPlayer:
    """Chooses uniformly among the allowed actions. See :class:`Player`.

    Args:
        action: The environment's action of one row.
        box: Conversion of stored numbers to the environment's.
        seed: Keys its choices.
    """

    def __init__(self, action: ActionSpec, box: BoxActions, seed: int) -> None:
        self.name = RANDOM_PLAYER
        self._action, self._box = action, box
        self._random = stream(seed, "random player", 0)

    def begin(self) -> None:
        """See :class:`Player`."""

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """See :class:`Player`."""

    def choose(self, view: ObservationView, rows: NDArray[np.bool_]) -> tuple[Array | None, Array | None]:
        """See :class:`Player`."""
        return random_actions(self._action, view.action_mask, len(rows), self._random, self._box)


class ScriptedPlayer:
    """A registered function. See :class:`Player`.

    Args:
        name: Its name.
        choose: The function.
        action: The environment's action of one row.
        box: Conversion of stored numbers to the environment's, which the function returns.
    """

    def __init__(self, name: str, choose: Choose, action: ActionSpec, box: BoxActions) -> None:
        self.name = name
        self._choose = choose
        self._action = action
        self._codec = ActionCodec(action, box)

    def begin(self) -> None:
        """See :class:`Player`."""

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """See :class:`Player`."""

    def choose(self, view: ObservationView, rows: NDArray[np.bool_]) -> tuple[Array | None, Array | None]:
        """See :class:`Player`.

        Raises:
            PlayerError: A choice has the wrong number of entries, does not exist or is forbidden.
        """
        spec = self._action
        discrete = np.zeros((len(rows), spec.num_discrete), np.int32)
        continuous = np.zeros((len(rows), spec.num_continuous), np.float32)
        for row in np.flatnonzero(rows).tolist():
            mask = None if view.action_mask is None else view.action_mask[row].copy()
            given = np.ravel(self._choose(_of_row(view.observation, row), mask))
            self._check(given, mask)
            discrete[row] = given[: spec.num_discrete]
            continuous[row] = given[spec.num_discrete :]
        stored = self._codec.encode_numbers(continuous) if spec.num_continuous else None
        return discrete if spec.num_discrete else None, stored

    def _check(self, given: Array, mask: Array | None) -> None:
        spec = self._action
        if given.size != spec.num_discrete + spec.num_continuous or given.dtype.kind not in "biuf":
            raise PlayerError(
                f"player {self.name!r} chose {given.tolist()}: {spec.num_discrete} choices and {spec.num_continuous} "
                "real numbers are needed"
            )
        first = 0
        for head, (choice, size) in enumerate(zip(given, spec.categorical_sizes, strict=False)):
            if not (0 <= choice < size and choice == int(choice)):
                raise PlayerError(f"player {self.name!r} chose {choice} for head {head}, which has 0 to {size - 1}")
            if mask is not None and not mask[first + int(choice)]:
                raise PlayerError(f"player {self.name!r} chose {choice} for head {head}, which the mask forbids")
            first += size


def _of_row(observation: Mapping[str, Array], row: int) -> Any:
    arrays = {name: array[row].copy() for name, array in observation.items()}
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays

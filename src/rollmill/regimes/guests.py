"""Builds guests, which play in a run without learning, and loads weights of other runs.

Imports torch: only processes with networks use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import ObservationView
from rollmill.evaluation.players import PLAYERS, RANDOM, Choose, PlayerError, ScriptedPlayer
from rollmill.evaluation.snapshot import Snapshot, snapshot_of_player
from rollmill.inference.acting_weights import ActingAlgorithm
from rollmill.inference.guests import Guest
from rollmill.settings.config import Config
from rollmill.specs import ActionSpec, EnvSpec


class RandomGuest:
    """Chooses uniformly among the allowed actions. See :class:`rollmill.inference.guests.ScriptedGuest`.

    Args:
        action: The action, as slots hold it.
        seed: Keys its choices.
    """

    def __init__(self, action: ActionSpec, seed: int) -> None:
        self._action = action
        self._seed = seed

    def choose(
        self,
        observation: Mapping[str, NDArray[Any]],
        mask: NDArray[np.bool_] | None,
        count: int,
        when: tuple[int, int, int],
    ) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """See :class:`rollmill.inference.guests.ScriptedGuest`."""
        return random_actions(self._action, mask, count, np.random.default_rng([self._seed, *when]))


class FunctionGuest:
    """A registered function. See :class:`rollmill.inference.guests.ScriptedGuest`.

    Args:
        name: Its name.
        choose: The function.
        action: The action, as slots hold it.
    """

    def __init__(self, name: str, choose: Choose, action: ActionSpec) -> None:
        self._player = ScriptedPlayer(name, choose, action)

    def choose(
        self,
        observation: Mapping[str, NDArray[Any]],
        mask: NDArray[np.bool_] | None,
        count: int,
        when: tuple[int, int, int],
    ) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """See :class:`rollmill.inference.guests.ScriptedGuest`."""
        view = ObservationView(dict(observation), mask, np.zeros(count, np.bool_), None)
        return self._player.choose(view, np.ones(count, np.bool_))


def make_guest(player: str, config: Config, spec: EnvSpec, device: torch.device) -> Guest:
    """Build a guest.

    Args:
        player: A run directory, a checkpoint file, a registered name or "random".
        config: The settings of the run in which it plays.
        spec: The environment.
        device: The device of a network.

    Raises:
        PlayerError: It is not known, or does not fit the environment.
    """
    action = config.stored_action(spec.action)
    if player == RANDOM:
        return RandomGuest(action, config.seed)
    if not Path(player).exists():
        return FunctionGuest(player, PLAYERS.find(player)(), action)
    snapshot = snapshot_of_player(player)
    algorithm = network_of(snapshot, config, spec)
    return ActingAlgorithm(algorithm.to(device).eval(), is_lowered=False)


def network_of(snapshot: Snapshot, config: Config, spec: EnvSpec) -> Algorithm:
    """Build the network of a run, for an environment.

    Raises:
        PlayerError: It does not fit.
    """
    given = snapshot.checkpoint
    if not isinstance(snapshot.algorithm, OnPolicyConfig):
        raise PlayerError(f"{given} is of an off-policy run: guests are scripted, or networks of on-policy runs")
    if snapshot.model.stored_action(spec.action) != config.stored_action(spec.action):
        raise PlayerError(
            f"{given} gives continuous actions another form than this run: use the same model.squash_actions and "
            "model.scale_actions"
        )
    algorithm = make_algorithm(spec.observation, spec.action, snapshot.model, snapshot.algorithm)
    _load(algorithm, snapshot)
    return algorithm


def load_weights(algorithm: Algorithm, source: str) -> None:
    """Load the weights of another run into a policy that begins to learn.

    Raises:
        PlayerError: They do not fit its network.
    """
    _load(algorithm, snapshot_of_player(source))


def _load(algorithm: Algorithm, snapshot: Snapshot) -> None:
    try:
        algorithm.load_state_dict(snapshot.weights)
    except (RuntimeError, TypeError, AttributeError) as error:  # names or values may be anything
        raise PlayerError(
            f"{snapshot.checkpoint} does not fit this environment and network (model.*): {error}"
        ) from error

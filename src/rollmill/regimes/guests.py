"""Builds guests, which play in a run without learning.

Imports torch: only processes with networks use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from rollmill.algorithms.base import Algorithm
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.central_view import own_entries
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import Array, ObservationView
from rollmill.evaluation.players import PLAYERS, Choose, PlayerError, ScriptedPlayer, player_factory
from rollmill.evaluation.policies import acting_part
from rollmill.evaluation.snapshot import Snapshot, folder_of_player, read_snapshot
from rollmill.inference.acting_weights import ActingAlgorithm
from rollmill.inference.guests import Actions, Guest, ScriptedGuest, When
from rollmill.settings.config import Config
from rollmill.specs import ActionSpec, BoxActions, EnvSpec
from rollmill.storage.population_config import RANDOM_PLAYER


def random_guest(action: ActionSpec, box: BoxActions, seed: int, index: int = 0) -> ScriptedGuest:
    """Build a guest that chooses uniformly among the allowed actions.

    Args:
        action: The environment's action.
        box: Conversion of stored numbers to the environment's.
        seed: Keys its choices.
        index: Keys them, too: its number among the guests, which would else all do the same.
    """

    def choose(observation: Mapping[str, Array], mask: Array | None, count: int, when: When) -> Actions:
        return random_actions(action, mask, count, np.random.default_rng([seed, index, *when]), box)

    return ScriptedGuest(choose)


def function_guest(name: str, function: Choose, action: ActionSpec, box: BoxActions) -> ScriptedGuest:
    """Build a guest that is a registered function.

    Args:
        name: Its name.
        function: The function.
        action: The environment's action.
        box: Conversion of stored numbers to the environment's.
    """
    player = ScriptedPlayer(name, function, action, box)

    def choose(observation: Mapping[str, Array], mask: Array | None, count: int, when: When) -> Actions:
        view = ObservationView(own_entries(observation), mask, np.zeros(count, np.bool_), None)
        return player.choose(view, np.ones(count, np.bool_))

    return ScriptedGuest(choose)


def make_guest(player: str, config: Config, spec: EnvSpec, device: torch.device, *, index: int) -> Guest:
    """Build a guest.

    Args:
        player: A run directory, a checkpoint file, a registered name or "random".
        config: The settings of the run in which it plays.
        spec: The environment.
        device: The device of a network.
        index: Its number among the guests.

    Raises:
        PlayerError: It is not known, or does not fit the environment.
    """
    if player == RANDOM_PLAYER:
        return random_guest(spec.action, config.box_actions, config.seed, index)
    if player in PLAYERS or not Path(player).exists():
        return function_guest(player, player_factory(player)(), spec.action, config.box_actions)
    snapshot = read_snapshot(*folder_of_player(player))
    algorithm = network_of(snapshot, config, spec)
    # Off-policy ones would need a schedule: they play as they are evaluated.
    explores = isinstance(algorithm, OnPolicyAlgorithm)
    return ActingAlgorithm(algorithm.to(device).eval(), is_lowered=False, explores=explores)


def network_of(snapshot: Snapshot, config: Config, spec: EnvSpec) -> Algorithm:
    """Build the network of a run, for an environment.

    Raises:
        PlayerError: It does not fit.
    """
    given = snapshot.checkpoint
    stored = snapshot.algorithm.stored_action(snapshot.model, spec.action)
    action = spec.action if isinstance(snapshot.algorithm, OnPolicyConfig) else stored
    if stored != config.stored_action(spec.action):
        raise PlayerError(
            f"{given} gives continuous actions another form than this run: use a run with the same "
            "model.squash_actions and model.scale_actions (off-policy algorithms scale actions)"
        )
    observation = own_entries(spec.observation)
    algorithm = make_algorithm(observation, action, snapshot.model, snapshot.algorithm)
    if snapshot.model.central_value:
        snapshot = snapshot._replace(weights=acting_part(algorithm, snapshot.weights))
    _load(algorithm, snapshot)
    return algorithm


def _load(algorithm: Algorithm, snapshot: Snapshot) -> None:
    try:
        algorithm.load_state_dict(snapshot.weights)
    except (RuntimeError, TypeError, AttributeError) as error:  # names or values may be anything
        raise PlayerError(
            f"{snapshot.checkpoint} does not fit this environment and network (model.*): {error}"
        ) from error

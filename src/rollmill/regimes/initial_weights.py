"""Weights of another run, with which a policy begins.

Imports torch: only processes with networks use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rollmill.algorithms.base import Algorithm
from rollmill.evaluation.players import PlayerError
from rollmill.evaluation.snapshot import folder_of_player, read_snapshot
from rollmill.learning.config import OptimiserConfig
from rollmill.models.freezing import is_named, suggest_part
from rollmill.runtime.signed_files import read_signed
from rollmill.storage.checkpoint_file import load_checkpoint

_MOST_NAMES = 5


class InitialWeights:
    """A checkpoint that another run has written.

    Args:
        source: A run's directory, of which the newest checkpoint is taken, or a checkpoint file.

    Raises:
        NoRunError: There is no such run or file.
        CheckpointError: No checkpoint is intact.
    """

    def __init__(self, source: str) -> None:
        """Read it."""
        self._folder, checkpoint = folder_of_player(source)
        self._snapshot = read_snapshot(self._folder, checkpoint)

    @property
    def state(self) -> Mapping[str, Any]:
        """The algorithm's ``state_dict``, normalisers included."""
        return self._snapshot.weights

    def optimisers(self, optimiser: OptimiserConfig) -> Mapping[str, Any]:
        """Return the state of the optimisers.

        Args:
            optimiser: This run's settings. Optimisers number the parameters that they train, without frozen ones.

        Raises:
            PlayerError: The checkpoint has none, they are of another kind, or its run has trained other parameters.
        """
        file = self._snapshot.checkpoint
        state = load_checkpoint(file)
        if not isinstance(found := state.get("updater"), dict):
            raise PlayerError(f"{file} holds no optimisers: leave init_optimiser out")
        own = optimiser.method.kind
        if others := {each["kind"] for each in found["optimisers"].values()} - {own}:
            raise PlayerError(
                f"init_optimiser: the run of {file} has learner.optimiser={min(others)}, this one {own}, whose moments "
                "mean other things: leave init_optimiser out"
            )
        saved, _ = read_signed(self._folder / "config.json")
        before, freeze = tuple(saved.get("learner", {}).get("freeze", ())), optimiser.freeze
        if before != tuple(freeze):
            raise PlayerError(
                f"init_optimiser: the run of {file} has learner.freeze={','.join(before) or 'none'}, this one "
                f"{','.join(freeze) or 'none'}, so that the optimisers have other parameters: leave init_optimiser out"
            )
        return found

    def load(self, algorithm: Algorithm, skip: Sequence[str] = ()) -> None:
        """Load the weights.

        Args:
            algorithm: Of the policy that begins.
            skip: Patterns of parameters and buffers that stay as they are (:func:`rollmill.models.freezing.is_named`).

        Raises:
            PlayerError: They do not fit its network, or a pattern matches nothing.
        """
        load_state(algorithm, self.state, skip, origin=str(self._snapshot.checkpoint))


def load_state(algorithm: Algorithm, given: Mapping[str, Any], skip: Sequence[str] = (), *, origin: str) -> None:
    """Load another policy's ``state_dict``; arguments and errors as of :meth:`InitialWeights.load`.

    Args:
        algorithm: Of the policy that begins.
        given: The other's ``state_dict``.
        skip: Patterns of parameters and buffers that stay as they are.
        origin: Where it is from, for messages.
    """
    own = algorithm.state_dict()
    for pattern in skip:
        if not any(is_named(name, pattern) for name in own):
            raise PlayerError(
                f"init_skip={pattern}: no parameter or module of the network has this name; "
                f"{suggest_part(pattern, own)}"
            )
    kept = [name for name in own if not any(is_named(name, pattern) for pattern in skip)]
    both = [name for name in kept if isinstance(given.get(name), Tensor)]
    differences = [
        *(
            f"{name} has the shape {tuple(given[name].shape)} there and {tuple(own[name].shape)} here"
            for name in both
            if given[name].shape != own[name].shape
        ),
        *(f"{name} is not there" for name in kept if name not in given),
        *(f"{name} is not here" for name in given if name not in own and not any(is_named(name, p) for p in skip)),
    ]
    if differences:
        more = len(differences) - _MOST_NAMES
        told = "; ".join(differences[:_MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")
        raise PlayerError(
            f"the weights of {origin} do not fit this environment and network: {told}. Use its settings model.* and "
            "its algorithm, or give these parts new weights (--init-skip NAME,... or "
            "init_skip='NAME,...', for example heads)"
        )
    try:
        algorithm.load_state_dict({**own, **{name: given[name] for name in kept}})
    except (RuntimeError, TypeError, AttributeError) as error:  # values may be anything
        raise PlayerError(f"the weights of {origin} cannot be loaded: {error}") from error

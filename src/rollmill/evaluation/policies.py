"""The algorithm of an agent, on observations and actions in the format of slots."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.algorithms.base import Action, Algorithm, Explore
from rollmill.algorithms.off_policy_config import OffPolicyConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.models.actor_critic import is_of_critic
from rollmill.models.config import ModelConfig
from rollmill.models.sizing import made_within_memory
from rollmill.specs import ActionSpec, ArraySpec


def acting_part(algorithm: Algorithm, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a network with a central value that acting needs; of the critic the algorithm's own.

    Args:
        algorithm: Built for what one agent observes.
        weights: ``state_dict`` of an algorithm whose critic sees what all agents observe.
    """
    own = algorithm.state_dict()
    found = {name: value if is_of_critic(name) else weights.get(name) for name, value in own.items()}
    return {name: value for name, value in found.items() if value is not None}


_LATE = 2**62  # agent steps after the end of every schedule


class Policy:
    """An algorithm that only acts. When it explores, it explores as at the end of its training.

    Args:
        observation: Name -> spec.
        action: The action of one row, as in the environment.
        model: The networks' configuration.
        config: The algorithm's configuration.
        device: Device of the networks.
        generator: Generator of noise.

    Attributes:
        algorithm: The algorithm.
        generator: As given.
        is_stochastic: Whether it has learned probabilities; otherwise exploration is added to its actions.
        state_size: Width of the recurrent state; 0 without a core.
    """

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OnPolicyConfig | OffPolicyConfig,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        def make() -> Algorithm:
            if isinstance(config, OffPolicyConfig):
                return make_algorithm(observation, action.in_unit_box, model, config)
            return make_algorithm(observation, action, model, config)

        self.algorithm = made_within_memory(make).to(device).eval()
        self.generator = generator
        # A critic of what all agents observe cannot be built for one agent's observation, and does not act.
        self._lacks_critic = model.central_value
        self.is_stochastic = isinstance(config, OnPolicyConfig)
        self.state_size = self.algorithm.state_size

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a ``state_dict``. Raises RuntimeError if it belongs to another network."""
        if self._lacks_critic:
            weights = acting_part(self.algorithm, weights)
        self.algorithm.load_state_dict(weights)

    def choose(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        mask: Tensor | None,
        *,
        is_first: Tensor,
        deterministic: bool,
    ) -> tuple[Action, Tensor | None]:
        """Compute actions of some rows, and the next state ``[N, S]``.

        Args:
            observation: Name -> ``[N, ...]``.
            state: ``[N, S]``, zeros at the start of an episode; None means zeros.
            mask: bool ``[N, M]`` or None.
            is_first: bool ``[N]``: whether an episode begins.
            deterministic: Whether to take the best actions.
        """
        explore = None
        if not deterministic:
            rows = torch.arange(len(is_first), device=is_first.device)
            explore = Explore(_LATE, _LATE, rows, len(is_first), is_first, self.generator)
        return self.algorithm.act_with_state(observation, state, None, mask, explore)

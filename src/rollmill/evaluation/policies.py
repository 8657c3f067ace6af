"""The networks of an agent, which map observations to actions in the form in which slots store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rollmill.algorithms.base import Explore
from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.models.sizing import made_within_memory
from rollmill.specs import ActionSpec, ArraySpec

__all__ = ["Policy", "make_policy"]

_LATE = 2**62  # agent steps after which every schedule has ended


class Policy(Protocol):
    """A network that chooses actions.

    Attributes:
        is_stochastic: Whether what it has learned are probabilities; else exploring is something added.
        state_size: Width of the recurrent state; 0 without a core.
    """

    is_stochastic: bool
    state_size: int

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over a ``state_dict``. Raises RuntimeError where it is of another network."""
        ...

    def choose(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        mask: Tensor | None,
        *,
        is_first: Tensor,
        deterministic: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Actions of some rows.

        Args:
            observation: Name -> ``[N, ...]``.
            state: ``[N, S]``, zeros where an episode begins, or None for zeros.
            mask: bool ``[N, M]`` or None.
            is_first: bool ``[N]``: where an episode begins.
            deterministic: Whether to take the best ones.

        Returns:
            (choices ``[N, Kd]``, real numbers ``[N, Kc]``, next state ``[N, S]``); absent ones are None.
        """
        ...


class _ActorCriticPolicy:
    is_stochastic = True

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self._model = made_within_memory(lambda: make_model(observation, action, model)).to(device).eval()
        self._generator = generator
        self.state_size = self._model.state_size

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(weights)

    def choose(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        mask: Tensor | None,
        *,
        is_first: Tensor,
        deterministic: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        output = self._model(observation, state)
        distribution = self._model.distribution
        if deterministic:
            discrete, continuous = distribution.mode(output.params, mask)
        else:
            discrete, continuous = distribution.sample(output.params, mask, self._generator)
        return discrete, continuous, output.rnn_state


class _OffPolicyPolicy:
    """An off-policy policy; it explores, if requested, as at the end of training."""

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OffPolicyConfig,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        algorithm = made_within_memory(lambda: make_algorithm(observation, action.in_unit_box, model, config))
        self._algorithm = algorithm.to(device).eval()
        self._generator = generator
        self.is_stochastic = False
        self.state_size = self._algorithm.state_size

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._algorithm.load_state_dict(weights)

    def choose(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        mask: Tensor | None,
        *,
        is_first: Tensor,
        deterministic: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        explore = None
        if not deterministic:
            first = next(iter(observation.values()))
            rows = torch.arange(len(first), device=first.device)
            explore = Explore(_LATE, _LATE, rows, len(first), is_first, self._generator)
        action, state = self._algorithm.act_with_state(observation, state, None, mask, explore)
        return action.discrete, action.continuous, state


def make_policy(
    observation: Mapping[str, ArraySpec],
    action: ActionSpec,
    model: ModelConfig,
    off_policy: OffPolicyConfig | None,
    device: torch.device,
    generator: torch.Generator,
) -> Policy:
    """The policy that these configurations describe, freshly initialised.

    Args:
        observation: Name -> spec.
        action: The action of one row, as the environment has it.
        model: Its networks.
        off_policy: Its algorithm, where that is an off-policy one.
        device: Where it runs.
        generator: Keys its noise.
    """
    if off_policy is None:
        return _ActorCriticPolicy(observation, action, model, device, generator)
    return _OffPolicyPolicy(observation, action, model, off_policy, device, generator)

"""Code shared by the networks of off-policy algorithms."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from rollmill.models.config import BUILT_IN_ENCODERS, ModelConfig
from rollmill.models.errors import UnfitModelError
from rollmill.models.observation import make_encoder
from rollmill.specs import ActionSpec, ArraySpec

M = TypeVar("M", bound=nn.Module)


def off_policy_model(config: ModelConfig, *, may_be_recurrent: bool = False) -> ModelConfig:
    """Replace ``"auto"`` where these networks differ from on-policy ones.

    Activations are ReLU and initial weights PyTorch's own, as in the papers of DQN, TD3 and SAC and in SB3 and CleanRL
    (Sample Factory's encoders keep their ELU).

    Args:
        config: The user's configuration.
        may_be_recurrent: Whether the algorithm learns from sequences.

    Raises:
        UnfitModelError: It sets a feature that these networks lack.
    """
    if config.core != "none" and not may_be_recurrent:
        raise UnfitModelError(
            f"model.core is {config.core!r}, but this algorithm learns from single transitions, which hold no "
            "recurrent state: set model.core to none, or use dqn (--algo dqn, algo='dqn'), which learns from "
            "sequences too, or an on-policy algorithm"
        )
    for name in ("normalise_observations", "normalise_images", "normalise_returns"):
        if getattr(config, name):
            raise UnfitModelError(
                f"model.{name} is True, but off-policy algorithms have no running statistics yet: set it to False, or "
                "use an on-policy algorithm"
            )
    if config.model != "actor_critic":
        raise UnfitModelError(
            f"model.model is {config.model!r}, but a model given to register_model is for on-policy algorithms: leave "
            "model.model alone and register an encoder, or an algorithm (rollmill.algorithms.registry)"
        )
    if config.activation == "auto" and not config.encoder.startswith("sf_"):
        config = replace(config, activation="relu")
    return replace(config, init="torch") if config.init == "auto" else config


def make_input_encoder(
    observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig
) -> tuple[nn.Module, int]:
    """Build encoders for images and concatenate everything else unchanged (choices one-hot); returns the width, too.

    For networks in which actions and features enter ``mlp_sizes``. A user's own encoder is used as given.
    """
    if config.encoder not in BUILT_IN_ENCODERS:
        return make_encoder(observation, action, config)
    if is_plain_vector(observation, config):
        ((name, spec),) = observation.items()
        return _Numbers(name), spec.size
    return make_encoder(observation, action, replace(config, mlp_sizes=()))


def is_plain_vector(observation: Mapping[str, ArraySpec], config: ModelConfig) -> bool:
    """Whether the observation is one float32 vector that needs no encoder."""
    if len(observation) > 1 or config.entry_encoders or config.encoder not in ("auto", "mlp"):
        return False
    (spec,) = observation.values()
    return spec.dtype == "float32" and len(spec.shape) == 1


class _Numbers(nn.Module):
    """Returns a single float32 vector unchanged, in a tenth of the general encoder's time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return observation[self.name]


def frozen_copy(network: M) -> M:
    """Copy a network as a target: same values, in evaluation mode, without gradients."""
    return copy.deepcopy(network).requires_grad_(False).eval()

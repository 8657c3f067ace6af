"""Networks that act, and the weights they load."""

from __future__ import annotations

import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.inference.acting_weights import ActingAlgorithm
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead


def test_weights_are_cast_when_they_are_loaded_and_not_in_every_pass() -> None:
    specs = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")}
    action = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
    model = ActorCritic(specs, action, ModelConfig(encoder="nature"))
    acting = ActingAlgorithm(PPO.over(model, OnPolicyConfig()).eval(), is_lowered=True)
    cast = [parameter for parameter in acting.algorithm.parameters() if parameter.dtype == torch.bfloat16]
    assert cast
    acting.flat.bytes[:] = 0
    acting.flat.unpack()
    assert all((parameter == 0).all() for parameter in cast)

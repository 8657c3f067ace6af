"""Networks that act, and the weights they load."""

from __future__ import annotations

import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.inference.acting_weights import ActingAlgorithm
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead


def test_weights_are_cast_when_they_are_loaded_and_not_in_every_pass() -> None:
    specs = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")}
    action = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
    model = ActorCritic(specs, action, ModelConfig(encoder="nature"))
    acting = ActingAlgorithm(PPO.over(model, OnPolicyConfig()).eval(), is_lowered=True)
    cast = [parameter for parameter in acting.algorithm.parameters() if parameter.dtype == torch.bfloat16]
    assert cast
    acting.flat.bytes[:] = 0
    acting.unpack(1)
    assert all((parameter == 0).all() for parameter in cast)


def test_pixels_meet_the_weights_and_the_moments_of_the_loaded_version() -> None:
    specs = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")}
    action = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
    seen = {"obs": torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)}
    acting = ActingAlgorithm(
        PPO.over(ActorCritic(specs, action, ModelConfig(encoder="nature")), OnPolicyConfig()).eval(), is_lowered=True
    )
    results = []
    for version in (1, 2):
        model = ActorCritic(specs, action, ModelConfig(encoder="nature")).eval()
        model.update_pixel_levels({"obs": torch.randint(0, 100 * version, (50, 4, 84, 84), dtype=torch.uint8)})
        acting.flat.bytes[:] = FlatState(model, alias=False).bytes
        acting.unpack(version)
        assert acting.version == version
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            results.append(model(seen).params)
            assert torch.equal(acting.algorithm.acting(seen).params, results[-1])
    assert not torch.equal(*results)

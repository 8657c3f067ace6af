"""Networks of past selves."""

from __future__ import annotations

import numpy as np
import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.inference.past_selves import PastSelves
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead
from rollmill.storage.bank import SnapshotBank, add_to_layout

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")


def an_algorithm(seed: int) -> PPO:
    torch.manual_seed(seed)
    return PPO(OBSERVATION, ACTION, ModelConfig(mlp_sizes=(8,)), OnPolicyConfig()).eval()


def test_each_place_acts_with_the_weights_of_its_snapshot_and_the_policy_keeps_its_own() -> None:
    live = an_algorithm(0)
    flat = FlatState(live.acting, alias=False)
    layout = ArenaLayout()
    add_to_layout(layout, places=2, nbytes=flat.bytes.nbytes, num_versions=2)
    bank = SnapshotBank(Arena.create(layout), create=True)
    selves = PastSelves(bank, live, is_lowered=False)
    observation = {"obs": torch.randn(5, 3)}
    before = live.value(observation, None, None)
    for generation, (place, seed) in enumerate([(0, 11), (1, 12), (0, 13)], start=1):
        snapshot = an_algorithm(seed)
        bank.write(place, generation, FlatState(snapshot.acting, alias=False).bytes)
        acting = selves.acting_for(place)
        assert acting.version == generation
        assert acting.algorithm is selves.acting_for(place).algorithm
        with torch.inference_mode():
            np.testing.assert_array_equal(
                acting.algorithm.value(observation, None, None).numpy(),
                snapshot.value(observation, None, None).numpy(),
            )
    assert torch.equal(live.value(observation, None, None), before)

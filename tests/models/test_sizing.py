"""Networks on the meta device have the sizes of real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollmill.algorithms.off_policy_config import off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import flat_nbytes
from rollmill.models.registry import make_model
from rollmill.models.sizing import fits, largest_parameter, without_memory

PICTURES = observation_specs(spaces.Box(0, 255, (64, 64, 3), np.uint8))
VECTORS = observation_specs(spaces.Box(-1, 1, (5,), np.float32))


@pytest.mark.parametrize(
    ("observation", "config"),
    [
        (PICTURES, ModelConfig()),
        (PICTURES, ModelConfig(encoder="impala", core="gru", core_size=16)),
        (VECTORS, ModelConfig(core="lstm", core_size=16)),
    ],
)
def test_an_outline_has_the_sizes_of_the_network(observation: dict[str, object], config: ModelConfig) -> None:
    action = action_spec(spaces.Discrete(3))
    before = torch.random.get_rng_state()
    outline = without_memory(lambda: make_model(observation, action, config))
    assert torch.equal(before, torch.random.get_rng_state())
    assert outline is not None
    model = make_model(observation, action, config)
    assert (outline.state_size, flat_nbytes(outline)) == (model.state_size, flat_nbytes(model))
    assert largest_parameter(outline) == largest_parameter(model) != ""
    size = sum(p.numel() for p in model.parameters()) * 4
    assert fits(outline, size)
    assert not fits(outline, size - 1)


@pytest.mark.parametrize("algo", ["dqn", "sac", "td3"])
def test_an_off_policy_algorithm_has_an_outline(algo: str) -> None:
    action = action_spec(spaces.Discrete(2) if algo == "dqn" else spaces.Box(-1, 1, (2,)))

    def make() -> torch.nn.Module:
        return make_algorithm(VECTORS, action, ModelConfig(mlp_sizes=(8,)), off_policy_config_of(algo)(algorithm=algo))

    outline = without_memory(make)
    assert outline is not None
    assert flat_nbytes(outline) == flat_nbytes(make())


def test_network_that_uses_its_parameters_has_no_outline() -> None:
    class Computing(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.scale = float(self.weight.abs().max())

    assert without_memory(Computing) is None

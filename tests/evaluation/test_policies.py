"""Recurrent off-policy policies, which remember as recurrent actor-critics do."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from rollmill.algorithms.off_policy_config import DDPGConfig, DQNConfig, OffPolicyConfig, SACConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.registry import make_algorithm
from rollmill.evaluation.policies import Policy
from rollmill.models import observation as observation_module
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
MODEL = ModelConfig(mlp_sizes=(8,), core="gru", core_size=5)


@torch.inference_mode()
def test_a_recurrent_dqn_acts_by_what_it_saw() -> None:
    torch.manual_seed(0)
    trained = make_algorithm(OBSERVATION, ACTION, MODEL, DQNConfig())
    assert isinstance(trained, RecurrentDQN)
    for p in trained.parameters():
        p.add_(torch.randn(p.shape))
    generator = torch.Generator().manual_seed(0)
    policy = Policy(OBSERVATION, ACTION, MODEL, DQNConfig(), torch.device("cpu"), generator)
    assert policy.state_size == 5
    policy.load(trained.state_dict())
    observation = torch.randn(9, 6, 3)
    q, last = trained.acting.unroll({"obs": observation}, None, None, ())
    state, remembered = None, []
    for x in observation:
        action, state = policy.choose(
            {"obs": x}, state, None, is_first=torch.zeros(6, dtype=torch.bool), deterministic=True
        )
        assert action.discrete is not None
        remembered.append(action.discrete[:, 0].numpy())
    np.testing.assert_array_equal(np.stack(remembered), q[:, :, 0].argmax(-1).numpy())
    torch.testing.assert_close(state, last)
    # Exploring keeps the state too.
    is_first = torch.zeros(6, dtype=torch.bool)
    _, state = policy.choose({"obs": observation[0]}, state, None, is_first=is_first, deterministic=False)
    assert state is not None
    assert state.shape == (6, 5)


@torch.inference_mode()
def test_correlated_noise_begins_anew_with_each_episode() -> None:
    box = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")
    config = DDPGConfig(noise_kind="ou", noise_std=0.1, ou_theta=0.0, ou_dt=0.01)
    generator = torch.Generator().manual_seed(0)
    policy = Policy(OBSERVATION, box, ModelConfig(mlp_sizes=(8,)), config, torch.device("cpu"), generator)
    observation = {"obs": torch.zeros(200, 3)}

    def noise(is_first: torch.Tensor) -> torch.Tensor:
        best, chosen = (
            policy.choose(observation, None, None, is_first=is_first, deterministic=best)[0].continuous
            for best in (True, False)
        )
        assert best is not None
        assert chosen is not None
        return (chosen - best)[:, 0]

    is_first = torch.ones(200, dtype=torch.bool)
    for step in range(400):  # a random walk of steps of 0.01
        spread = noise(is_first & (step == 0)).std().item()
    assert spread == pytest.approx(0.2, rel=0.3)
    is_first[100:] = False
    after = noise(is_first)
    assert after[:100].abs().max() < 0.06
    assert after[100:].std().item() == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(8)], ids=["dropout", "batch norm"])
@pytest.mark.parametrize("algorithm", [OnPolicyConfig(), DQNConfig(), SACConfig()])
@torch.inference_mode()
def test_layers_that_learn_otherwise_than_they_act(
    layer: nn.Module, algorithm: OnPolicyConfig | OffPolicyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One observation gets an answer, and always the same one."""

    def encoder(observation: object, action: object, config: object) -> nn.Module:
        own = nn.Sequential(nn.Linear(3, 8), copy.deepcopy(layer), nn.Linear(8, 4))
        module = Reading(own)
        module.output_size = 4
        return module

    monkeypatch.setitem(observation_module.ENCODERS.factories, "own", encoder)
    model, generator = ModelConfig(encoder="own"), torch.Generator().manual_seed(0)
    policy = Policy(OBSERVATION, ACTION, model, algorithm, torch.device("cpu"), generator)
    observation, is_first = {"obs": torch.randn(64, 3) * 5}, torch.ones(64, dtype=torch.bool)
    first = policy.choose(observation, None, None, is_first=is_first, deterministic=True)[0].discrete
    assert first is not None
    for _ in range(3):
        again = policy.choose(observation, None, None, is_first=is_first, deterministic=True)[0].discrete
        assert again is not None
        assert torch.equal(first, again)
    row = policy.choose({"obs": observation["obs"][:1]}, None, None, is_first=is_first[:1], deterministic=True)[
        0
    ].discrete
    assert row is not None
    assert torch.equal(row, first[:1])


class Reading(nn.Module):
    """An encoder of a vector."""

    output_size: int

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self.layers(observation["obs"])
        return features

"""Recurrent off-policy policies, which remember as recurrent actor-critics do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.registry import make_algorithm
from rollmill.evaluation.policies import make_policy
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
MODEL = ModelConfig(mlp_sizes=(8,), core="gru", core_size=5)


@torch.inference_mode()
def test_a_recurrent_dqn_acts_by_what_it_saw() -> None:
    torch.manual_seed(0)
    trained = make_algorithm(OBSERVATION, ACTION, MODEL, OffPolicyConfig())
    assert isinstance(trained, RecurrentDQN)
    for p in trained.parameters():
        p.add_(torch.randn(p.shape))
    generator = torch.Generator().manual_seed(0)
    policy = make_policy(OBSERVATION, ACTION, MODEL, OffPolicyConfig(), torch.device("cpu"), generator)
    assert policy.state_size == 5
    policy.load(trained.state_dict())
    observation = torch.randn(9, 6, 3)
    q, last = trained.acting.unroll({"obs": observation}, None, None, ())
    state, remembered = None, []
    for x in observation:
        choice, _, state = policy.choose(
            {"obs": x}, state, None, is_first=torch.zeros(6, dtype=torch.bool), deterministic=True
        )
        assert choice is not None
        remembered.append(choice[:, 0].numpy())
    np.testing.assert_array_equal(np.stack(remembered), q[:, :, 0].argmax(-1).numpy())
    torch.testing.assert_close(state, last)
    # Exploring keeps the state too.
    is_first = torch.zeros(6, dtype=torch.bool)
    _, _, state = policy.choose({"obs": observation[0]}, state, None, is_first=is_first, deterministic=False)
    assert state is not None
    assert state.shape == (6, 5)


@torch.inference_mode()
def test_correlated_noise_begins_anew_with_each_episode() -> None:
    box = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")
    config = OffPolicyConfig(algorithm="ddpg", noise_kind="ou", noise_std=0.1, ou_theta=0.0, ou_dt=0.01)
    generator = torch.Generator().manual_seed(0)
    policy = make_policy(OBSERVATION, box, ModelConfig(mlp_sizes=(8,)), config, torch.device("cpu"), generator)
    observation = {"obs": torch.zeros(200, 3)}

    def noise(is_first: torch.Tensor) -> torch.Tensor:
        _, best, _ = policy.choose(observation, None, None, is_first=is_first, deterministic=True)
        _, chosen, _ = policy.choose(observation, None, None, is_first=is_first, deterministic=False)
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

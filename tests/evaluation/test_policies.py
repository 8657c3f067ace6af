"""Recurrent off-policy policies, which remember as recurrent actor-critics do."""

from __future__ import annotations

import numpy as np
import torch

from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.registry import make_algorithm
from rollmill.evaluation.policies import make_policy
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

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
        choice, _, state = policy.choose({"obs": x}, state, None, deterministic=True)
        assert choice is not None
        remembered.append(choice[:, 0].numpy())
    np.testing.assert_array_equal(np.stack(remembered), q[:, :, 0].argmax(-1).numpy())
    torch.testing.assert_close(state, last)
    # Exploring keeps the state too.
    _, _, state = policy.choose({"obs": observation[0]}, state, None, deterministic=False)
    assert state is not None
    assert state.shape == (6, 5)

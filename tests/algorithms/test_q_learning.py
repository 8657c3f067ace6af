"""What all deep Q-learning shares: the bootstrapped target, choices, and which networks are trained and copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rollmill.algorithms.base import Explore, Loss
from rollmill.algorithms.off_policy_config import DQNConfig
from rollmill.algorithms.q_learning import QLearning
from rollmill.algorithms.requirements import UnfitActionsError
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
MULTI = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=3)), structure="multidiscrete")
FORBIDDEN = -1e30


class Greedy(QLearning):
    """Without a loss of its own: acting and targets are what all have."""

    def act(self, observation: Any, action_mask: Any, explore: Explore | None) -> Any:
        return self.choose(self.acting(observation), action_mask, explore)

    def loss(self, batch: Any, generator: torch.Generator | None) -> Loss:
        return Loss(self.acting(batch).sum(), None, {})


def make(**settings: Any) -> Greedy:
    torch.manual_seed(0)
    return Greedy(OBSERVATION, MULTI, ModelConfig(mlp_sizes=(8,)), DQNConfig(**settings))


def explore(rows: int, seed: int, steps: int = 0) -> Explore:
    reset = torch.zeros(rows, dtype=torch.bool)
    return Explore(steps, 100, torch.arange(rows), rows, reset, torch.Generator().manual_seed(seed))


# Of two samples; the first head has two choices, so that its third value is below all others.
TARGET_Q = torch.tensor([[[1.0, 4.0, FORBIDDEN], [0.0, 2.0, 6.0]], [[3.0, 1.0, FORBIDDEN], [5.0, 7.0, 9.0]]])
ONLINE_Q = torch.tensor([[[9.0, 1.0, FORBIDDEN], [0.0, 5.0, 1.0]], [[0.0, 2.0, FORBIDDEN], [8.0, 0.0, 1.0]]])


def test_the_target_is_the_mean_of_the_heads_maxima() -> None:
    found = make().bootstrap(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]), TARGET_Q, None)
    assert found.tolist() == [1.0 + 0.5 * (4.0 + 6.0) / 2, -2.0]


def test_the_online_network_selects_and_the_target_network_rates() -> None:
    found = make().bootstrap(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 1.0]), TARGET_Q, ONLINE_Q)
    assert found.tolist() == [1.0 + 0.5 * (1.0 + 2.0) / 2, (1.0 + 5.0) / 2]


def test_with_rescaling_the_values_are_unscaled_and_the_target_is_rescaled() -> None:
    def h(x: float) -> float:
        return (1 if x >= 0 else -1) * ((abs(x) + 1) ** 0.5 - 1) + 1e-3 * x

    raw = torch.tensor([[[50.0, -3.0]], [[-7.0, -20.0]]])
    scaled = torch.tensor([[[h(50.0), h(-3.0)]], [[h(-7.0), h(-20.0)]]])
    found = make(value_rescaling=True).bootstrap(torch.tensor([2.0, 1.0]), torch.tensor([0.9, 0.9]), scaled, None)
    expected = [h(2.0 + 0.9 * raw[0].max().item()), h(1.0 + 0.9 * raw[1].max().item())]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_the_largest_allowed_values_are_chosen() -> None:
    algorithm = make()
    q = TARGET_Q.clone()
    assert algorithm.choose(q, None, None).discrete.tolist() == [[1, 2], [0, 2]]
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 0, 0]], dtype=torch.bool)
    action = algorithm.choose(q, mask, None)
    assert action.discrete is not None
    assert action.discrete.tolist() == [[0, 1], [0, 0]]
    assert action.discrete.dtype == torch.int32
    assert action.continuous is action.log_prob is action.value is None


def test_exploring_choices_are_random_allowed_ones_with_probability_epsilon() -> None:
    rows = 4000
    q = TARGET_Q[:1].expand(rows, 2, 3).clone()
    algorithm = make(epsilon_start=0.5, epsilon_end=0.5, random_steps=10)
    mask = torch.tensor([1, 1, 1, 0, 1], dtype=torch.bool).expand(rows, 5)
    for steps, epsilon in ((10, 0.5), (9, 1.0)):  # Before random_steps all are random.
        choice = algorithm.choose(q, mask, explore(rows, seed=1, steps=steps)).discrete
        assert choice is not None
        assert set(choice[:, 0].tolist()) == {0, 1}
        assert set(choice[:, 1].tolist()) == {0, 2}
        # Greedy is (1, 2), which a random choice is with probability 1/4.
        greedy = (choice == torch.tensor([1, 2])).all(1).float().mean().item()
        assert greedy == pytest.approx(1 - 0.75 * epsilon, abs=0.03)


def test_the_target_network_is_a_frozen_copy_that_no_objective_trains() -> None:
    algorithm = make()
    ((network, target),) = algorithm.target_pairs()
    assert network is algorithm.acting
    assert target is algorithm.target_network
    for ours, theirs in zip(network.parameters(), target.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours is not theirs
        assert not theirs.requires_grad
    (objective,) = algorithm.objectives()
    assert objective.name == "q"
    assert {id(p) for p in objective.parameters} == {id(p) for p in network.parameters()}
    assert objective.loss == algorithm.loss


def test_real_numbers_are_refused() -> None:
    box = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")
    with pytest.raises(UnfitActionsError, match="DQN rates every choice"):
        Greedy(OBSERVATION, box, ModelConfig(), DQNConfig())


def test_a_core_is_refused_unless_the_subclass_learns_from_sequences() -> None:
    recurrent = ModelConfig(core="gru", core_size=8)
    with pytest.raises(ValueError, match="core is 'gru', but this algorithm learns from single transitions"):
        Greedy(OBSERVATION, MULTI, recurrent, DQNConfig())
    assert Greedy(OBSERVATION, MULTI, recurrent, DQNConfig(), may_be_recurrent=True).acting.state_size == 8

"""On-policy algorithms: how they act, and that the learner rates an action as the one that chose it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.algorithms.random_trajectories import MIXED, OBSERVATION, flat, random_batch
from torch import Tensor

from rollmill.algorithms.base import Action, Explore, Loss
from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model

T, K = 5, 4


class Imitation(OnPolicyAlgorithm):
    """Makes the given actions likelier."""

    def loss(self, batch: OnPolicyBatch, generator: torch.Generator | None) -> Loss:
        log_prob = self.evaluate(batch).log_prob
        return Loss(-torch.where(batch.keep, log_prob, 0.0).sum() / batch.divisor, None, {})


def make(**model: Any) -> Imitation:
    torch.manual_seed(5)
    return Imitation(OBSERVATION, MIXED, ModelConfig(mlp_sizes=(16,), **model), OnPolicyConfig())


def explore(rows: int = K, seed: int = 0, **changes: Any) -> Explore:
    reset = torch.zeros(rows, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    return Explore(0, 100, torch.arange(rows), rows, reset, generator)._replace(**changes)


def observe(rows: int = K, seed: int = 0) -> dict[str, Tensor]:
    return {"obs": torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))}


def test_a_sampled_action_has_its_log_probability_and_value() -> None:
    algorithm = make()
    observation = observe()
    action = algorithm.act(observation, None, explore())
    assert action.discrete is not None
    assert action.continuous is not None
    assert action.log_prob is not None
    assert action.value is not None
    output = algorithm.acting(observation)
    for row, params in enumerate(output.params):
        choice = torch.distributions.Categorical(logits=params[:3]).log_prob(action.discrete[row, 0])
        number = torch.distributions.Normal(params[3], params[4].exp()).log_prob(action.continuous[row, 0])
        assert action.log_prob[row].item() == pytest.approx((choice + number).item(), rel=1e-4, abs=1e-5)
    assert torch.equal(action.value, output.value)
    assert torch.equal(algorithm.value(observation, None, None), output.value)
    again = algorithm.act(observation, None, explore())
    other = algorithm.act(observation, None, explore(seed=1))
    assert again.continuous is not None
    assert other.continuous is not None
    assert torch.equal(again.continuous, action.continuous)
    assert not torch.equal(other.continuous, action.continuous)


def test_keyed_noise_makes_a_row_independent_of_its_batch() -> None:
    algorithm = make()
    observation = observe()
    uniform = torch.rand(K, algorithm.acting.distribution.noise_size, generator=torch.Generator().manual_seed(3))
    whole = algorithm.act(observation, None, explore(uniform=uniform.clone()))
    assert whole.continuous is not None
    assert whole.discrete is not None
    for row in range(K):
        one = algorithm.act(
            {"obs": observation["obs"][row : row + 1]}, None, explore(1, seed=9, uniform=uniform[row : row + 1].clone())
        )
        assert one.discrete is not None
        assert one.continuous is not None
        assert torch.equal(one.discrete[0], whole.discrete[row])
        torch.testing.assert_close(one.continuous[0], whole.continuous[row])


def test_without_exploration_it_takes_the_mode_and_obeys_the_mask() -> None:
    algorithm = make()
    observation = observe()
    params = algorithm.acting(observation).params
    action = algorithm.act(observation, None, None)
    assert action.discrete is not None
    assert action.discrete[:, 0].tolist() == params[:, :3].argmax(-1).tolist()
    assert torch.equal(action.continuous, params[:, 3:4])
    assert action.log_prob is action.value is None
    forbidden = torch.ones(K, 3, dtype=torch.bool).scatter_(1, action.discrete.long(), False)
    for how in (None, explore(seed=1), explore(seed=2)):
        masked = algorithm.act(observation, forbidden, how)
        assert masked.discrete is not None
        assert (masked.discrete != action.discrete).all()


def test_given_actions_are_rated_and_not_replaced() -> None:
    algorithm = make()
    observation = observe()
    sampled = algorithm.act(observation, None, explore(seed=4))
    rated = algorithm.act(observation, None, explore(seed=5, given=Action(sampled.discrete, sampled.continuous)))
    assert rated.discrete is sampled.discrete
    assert rated.continuous is sampled.continuous
    torch.testing.assert_close(rated.log_prob, sampled.log_prob)
    torch.testing.assert_close(rated.value, sampled.value)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_unrolled_trajectories_are_rated_as_they_were_acted_step_by_step(core: str) -> None:
    algorithm = make(core=core, core_size=8)
    batch = random_batch(T, K, state_size=algorithm.state_size)
    assert batch.reset is not None
    assert batch.reset[2:T].any(), "no state is reset: the test shows nothing"
    state = batch.rnn_state
    steps: list[Action] = []
    for t in range(T):
        observation = {"obs": batch.observation["obs"][t]}
        expected = algorithm.value(observation, state, batch.reset[t])
        action, state = algorithm.act_with_state(observation, state, batch.reset[t], None, explore(seed=t))
        torch.testing.assert_close(action.value, expected)
        steps.append(action)
    taken = batch._replace(
        discrete=torch.stack([step.discrete for step in steps]),
        continuous=torch.stack([step.continuous for step in steps]),
    )
    for encoder_batch in (None, 3):  # It affects speed only.
        algorithm.encoder_batch = encoder_batch
        evaluation = algorithm.evaluate(taken)
        assert evaluation.value.shape == (T + 1, K)
        for t, step in enumerate(steps):
            torch.testing.assert_close(evaluation.log_prob[t], step.log_prob, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(evaluation.value[t], step.value, rtol=1e-4, atol=1e-5)
    assert algorithm.needs_trajectories


def test_trajectories_and_independent_samples_are_rated_alike() -> None:
    algorithm = make()
    batch = random_batch(T, K)
    of_trajectories, of_samples = algorithm.evaluate(batch), algorithm.evaluate(flat(batch))
    torch.testing.assert_close(of_trajectories.log_prob[batch.keep], of_samples.log_prob)
    torch.testing.assert_close(of_trajectories.entropy[batch.keep], of_samples.entropy)
    torch.testing.assert_close(of_trajectories.value[:T][batch.keep], of_samples.value)
    assert not algorithm.needs_trajectories
    assert not algorithm.needs_last_value


def test_a_mask_of_trajectories_may_be_longer_than_the_steps() -> None:
    algorithm = make()
    batch = random_batch(T, K)
    assert batch.discrete is not None
    mask = torch.ones(T + 1, K, 3, dtype=torch.bool)
    mask[:T].scatter_(2, (batch.discrete.long() + 1) % 3, False)
    masked = algorithm.evaluate(batch._replace(action_mask=mask))
    for t in range(T):
        params = algorithm.acting({"obs": batch.observation["obs"][t]}).params
        expected = algorithm.acting.distribution.log_prob(
            params,
            batch.discrete[t],
            batch.continuous[t],
            mask[t],
        )
        torch.testing.assert_close(masked.log_prob[t], expected)
    assert (masked.log_prob > algorithm.evaluate(batch).log_prob).all()  # One choice less to share with.


def test_the_objective_trains_everything_that_is_not_frozen() -> None:
    algorithm = make()
    frozen = next(iter(algorithm.parameters()))
    frozen.requires_grad_(False)
    (objective,) = algorithm.objectives()
    assert objective.name == "actor_critic"
    assert objective.learning_rate is None
    assert {id(p) for p in objective.parameters} == {id(p) for p in algorithm.parameters()} - {id(frozen)}
    assert objective.loss(flat(random_batch(T, K)), None).value.requires_grad


def test_an_algorithm_over_a_network_uses_it_and_does_not_copy_it() -> None:
    network = make_model(OBSERVATION, MIXED, ModelConfig(core="gru", core_size=8))
    algorithm = Imitation.over(network, OnPolicyConfig(discount=0.5))
    assert algorithm.acting is network
    assert algorithm.state_size == network.state_size == 8
    assert algorithm.config.discount == 0.5
    assert {id(p) for p in algorithm.parameters()} == {id(p) for p in network.parameters()}


def test_scheduled_numbers_reach_the_loss_as_they_are() -> None:
    scheduled: Mapping[str, float] = {"entropy_coef": 0.1, "clip_range": 0.2}
    assert make().coefficients(scheduled) == scheduled


def test_weights_of_the_network_alone_are_loaded() -> None:
    source, target = make(), make()
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1.0)
    for state in (source.acting.state_dict(), source.state_dict()):
        for p in target.parameters():
            p.detach().zero_()
        target.load_state_dict(state)
        for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    state.popitem()
    with pytest.raises(RuntimeError, match="Missing key"):
        target.load_state_dict(state)

"""PPO's and IMPALA's loss against literal ones, and what the learner asks them before."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.algorithms.random_trajectories import MIXED, OBSERVATION, flat, random_arrays, random_batch
from torch import nn

from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.losses.vtrace import vtrace
from rollmill.models.config import ModelConfig
from rollmill.specs import TASK, ArraySpec

T, K = 6, 5


def make_ppo(model: dict[str, Any] | None = None, **settings: Any) -> PPO:
    torch.manual_seed(3)
    ppo = PPO(OBSERVATION, MIXED, ModelConfig(mlp_sizes=(16,), **(model or {})), OnPolicyConfig(**settings))
    if ppo.acting.return_normaliser is not None:
        ppo.acting.update_value_normaliser(torch.tensor([1.0, 5.0, 9.0]))
    return ppo


def scheduled(ppo: PPO, entropy_coef: float = 0.02, clip_range: float = 0.2) -> dict[str, float]:
    return dict(ppo.coefficients({"entropy_coef": entropy_coef, "clip_range": clip_range}))


def literal_outputs(ppo: PPO, batch: OnPolicyBatch) -> list[tuple[float, float, float]]:
    """Log-probability, entropy and value of each sample, by torch.distributions."""
    output = ppo.acting(batch.observation)
    assert batch.discrete is not None
    assert batch.continuous is not None
    outputs = []
    for row, params in enumerate(output.params):
        choice = torch.distributions.Categorical(logits=params[:3])
        number = torch.distributions.Normal(params[3], params[4].exp())
        log_prob = choice.log_prob(batch.discrete[row, 0]) + number.log_prob(batch.continuous[row, 0])
        entropy = choice.entropy() + number.entropy()
        outputs.append((log_prob.item(), entropy.item(), output.value[row].item()))
    return outputs


def literal_loss(ppo: PPO, batch: OnPolicyBatch, low: float, high: float, entropy_coef: float) -> dict[str, float]:
    """Sums over the samples, one by one."""
    config = ppo.config
    assert batch.advantage is not None
    assert batch.return_ is not None
    advantages = batch.advantage.numpy().astype(np.float64)
    if config.normalise_advantages:
        advantages = (advantages - advantages.mean()) / advantages.std(ddof=1)
    outputs = literal_outputs(ppo, batch)
    found = dict.fromkeys(("policy", "value", "entropy", "approx_kl", "clip_fraction", "ratio"), 0.0)
    for row, (advantage, (log_prob, entropy, value)) in enumerate(zip(advantages, outputs, strict=True)):
        log_ratio = log_prob - batch.log_prob[row].item()
        ratio = math.exp(log_ratio)
        if config.clip_kind == "none":
            found["policy"] -= log_prob * advantage
        else:
            found["policy"] -= min(ratio * advantage, max(low, min(high, ratio)) * advantage)
            found["clip_fraction"] += ratio < low or ratio > high
        before = batch.value[row].item()
        target = float(ppo.acting.normalise_value(batch.return_[row]))
        error = (value - target) ** 2
        if config.value_clip is not None:
            near = before + max(-config.value_clip, min(config.value_clip, value - before))
            error = max(error, (near - target) ** 2)
        found["value"] += 0.5 * error
        found["entropy"] += entropy
        found["approx_kl"] += ratio - 1.0 - log_ratio
        found["ratio"] += ratio
    found = {name: total / batch.divisor for name, total in found.items()}
    found["loss"] = found["policy"] + config.value_coef * found["value"] - entropy_coef * found["entropy"]
    return found


@pytest.mark.parametrize(
    ("clip_kind", "bounds"),
    [("symmetric", (0.8, 1.2)), ("reciprocal", (1 / 1.2, 1.2)), ("none", (0.0, math.inf))],
)
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("normalise_returns", [True, False])
def test_the_loss_equals_a_sum_over_samples(
    clip_kind: Literal["symmetric", "reciprocal", "none"],
    bounds: tuple[float, float],
    value_clip: float | None,
    normalise: bool,
    normalise_returns: bool,
) -> None:
    ppo = make_ppo(
        {"normalise_returns": normalise_returns},
        clip_kind=clip_kind,
        value_clip=value_clip,
        normalise_advantages=normalise,
        value_coef=0.7,
    )
    batch = random_batch(T, K, coefficients=scheduled(ppo))
    # Ratios on both sides of the range: the behaviour policy is near to the current one.
    nudges = torch.linspace(-0.4, 0.4, T * K).view(T, K)
    batch = batch._replace(log_prob=ppo.evaluate(batch).log_prob.detach() + nudges)
    assert not batch.keep.all()
    expected = literal_loss(ppo, flat(batch), *bounds, entropy_coef=0.02)
    assert clip_kind == "none" or 0.0 < expected["clip_fraction"] < 1.0
    for given in (batch, flat(batch)):
        loss = ppo.loss(given, None)
        found = {name: value.item() for name, value in loss.statistics.items()} | {"loss": loss.value.item()}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert loss.td_error is None


def test_parts_of_a_minibatch_add_up_to_the_whole() -> None:
    ppo = make_ppo()
    whole = flat(random_batch(T, K))._replace(coefficients=scheduled(ppo))
    half = len(whole.keep) // 2

    def part(rows: slice) -> OnPolicyBatch:
        tensors = {
            name: value[rows]
            for name, value in whole._asdict().items()
            if isinstance(value, torch.Tensor) and name != "moments"
        }
        observation = {name: array[rows] for name, array in whole.observation.items()}
        return whole._replace(**tensors, observation=observation)

    parts = [ppo.loss(part(rows), None).value for rows in (slice(half), slice(half, None))]
    assert sum(parts).item() == pytest.approx(ppo.loss(whole, None).value.item(), rel=1e-5)


@pytest.mark.parametrize("clip_kind", ["none", "reciprocal"])
def test_vtrace_takes_its_advantages_from_the_current_policy(clip_kind: Literal["none", "reciprocal"]) -> None:
    ppo = make_ppo(
        {"normalise_returns": True},
        advantage="vtrace",
        clip_kind=clip_kind,
        normalise_advantages=False,
        discount=0.9,
        vtrace_lambda=0.8,
        vtrace_rho=1.3,
        vtrace_c=0.9,
    )
    batch = random_batch(T, K, advantage=None, return_=None)
    batch = batch._replace(coefficients=scheduled(ppo))
    evaluation = ppo.evaluate(batch)
    assert evaluation.value.shape == (T + 1, K)
    assert batch.terminated is not None
    assert batch.cut is not None
    assert batch.valid is not None
    target, advantage = vtrace(
        batch.log_prob,
        evaluation.log_prob.detach(),
        batch.reward,
        ppo.acting.denormalise_value(evaluation.value.detach()),
        0.9 * (~batch.terminated).float(),
        batch.cut,
        batch.valid,
        vtrace_lambda=0.8,
        rho_bar=1.3,
        c_bar=0.9,
        # The surrogate with clipping has the ratio, so that the advantage must not have it, too.
        rho_pg_bar=1.3 if clip_kind == "none" else None,
    )
    expected = ppo_of_gae_settings(clip_kind).loss(flat(batch._replace(advantage=advantage, return_=target)), None)
    loss = ppo.loss(batch, None)
    assert loss.value.item() == pytest.approx(expected.value.item(), rel=1e-5)
    assert loss.moments is not None
    kept = advantage[batch.keep].double()
    torch.testing.assert_close(loss.moments, torch.stack([batch.keep.sum().double(), kept.sum(), kept.square().sum()]))


def test_vtrace_normalises_the_advantages_of_each_task() -> None:
    torch.manual_seed(3)
    spec = {**OBSERVATION, TASK: ArraySpec(shape=(2,), dtype="float32", low=0, high=1, one_hot=True)}
    config = OnPolicyConfig(advantage="vtrace", clip_kind="none", value_coef=0.0)
    ppo = PPO(spec, MIXED, ModelConfig(mlp_sizes=(16,), normalise_returns="popart"), config)
    batch, of_task = random_batch(T, K, advantage=None, return_=None), torch.arange(K) % 2
    batch = batch._replace(
        observation={**batch.observation, TASK: nn.functional.one_hot(of_task).float().expand(T + 1, K, 2)},
        reward=batch.reward * (1.0 + 99.0 * of_task),
        coefficients=scheduled(ppo, entropy_coef=0.0),
    )
    loss = ppo.loss(batch, None)
    assert loss.moments is not None
    assert loss.moments[0].tolist() == [batch.keep[:, of_task == each].sum() for each in (0, 1)]
    alone = [ppo.loss(batch._replace(keep=batch.keep & (of_task == each)), None).value.item() for each in (0, 1)]
    assert min(map(abs, alone)) > 1e-3
    assert loss.value.item() == pytest.approx(sum(alone), rel=1e-4), "each task counts as if it were alone"


def ppo_of_gae_settings(clip_kind: Literal["none", "reciprocal"]) -> PPO:
    return make_ppo({"normalise_returns": True}, clip_kind=clip_kind, normalise_advantages=False, discount=0.9)


def test_the_gradient_of_impala_does_not_go_through_its_targets() -> None:
    ppo = make_ppo({"shared": False}, advantage="vtrace", clip_kind="none", value_coef=0.0)
    batch = random_batch(T, K, advantage=None, return_=None)
    ppo.loss(batch._replace(coefficients=scheduled(ppo, entropy_coef=0.0)), None).value.backward()
    of_critic = [p.grad for name, p in ppo.acting.named_parameters() if "critic" in name]
    assert of_critic
    assert not any(grad is not None and grad.any() for grad in of_critic)


def test_coefficients_are_the_ends_of_the_range_of_ratios() -> None:
    given = {"entropy_coef": 0.5, "clip_range": 0.25}
    for kind, low, high in (("symmetric", 0.75, 1.25), ("reciprocal", 0.8, 1.25), ("none", 0.0, math.inf)):
        expected = {"low": low, "high": high, "entropy_coef": 0.5, "value_coef": 0.5}
        assert make_ppo(clip_kind=kind).coefficients(given) == expected


@pytest.mark.parametrize(
    ("core", "advantage", "needs_trajectories", "needs_last_value"),
    [("none", "gae", False, False), ("gru", "gae", True, False), ("none", "vtrace", True, True)],
)
def test_only_recurrence_and_vtrace_need_trajectories(
    core: str, advantage: str, needs_trajectories: bool, needs_last_value: bool
) -> None:
    ppo = make_ppo({"core": core, "core_size": 8}, advantage=advantage)
    assert (ppo.needs_trajectories, ppo.needs_last_value) == (needs_trajectories, needs_last_value)


def test_vtrace_prepares_no_advantages_and_returns_only_for_a_normaliser() -> None:
    arrays = random_arrays(T, K)
    moments = {"value_mean": 0.0, "value_std": 1.0}
    gae = make_ppo(gae_lambda=0.7).prepare(arrays, **moments)
    plain = make_ppo(advantage="vtrace", vtrace_lambda=0.7).prepare(arrays, **moments)
    normalised = make_ppo({"normalise_returns": True}, advantage="vtrace", vtrace_lambda=0.7).prepare(arrays, **moments)
    assert gae.advantage is not None
    assert gae.return_ is not None
    assert plain.advantage is plain.return_ is normalised.advantage is None
    np.testing.assert_array_equal(normalised.return_, gae.return_)

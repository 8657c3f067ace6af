"""The whole model: unroll against single steps, heads, normalisers, precision, and that it can learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollmill.losses.ppo import policy_gradient_loss, value_loss
from rollmill.models.actor_critic import ActorCritic, is_of_critic
from rollmill.models.config import ModelConfig
from rollmill.models.encoders import ImageInput
from rollmill.models.observation import ENCODERS, ObservationEncoder, register_encoder
from rollmill.models.registry import make_model
from rollmill.specs import CENTRAL_VIEW, TASK, ActionSpec, ArraySpec, BoxHead, CategoricalHead

VECTOR = {"obs": ArraySpec(shape=(6,), dtype="float32")}
IMAGE = {"obs": ArraySpec(shape=(4, 36, 36), dtype="uint8", low=0, high=255)}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0, -2.0), high=(1.0, 2.0), shape=(2,)),), structure="box")
HYBRID = ActionSpec(heads=(CategoricalHead(n=3), *BOX.heads), structure="tuple")


def observe(specs: dict[str, ArraySpec], *leading: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 256, (*leading, *spec.shape), dtype=torch.uint8, generator=g)
        if spec.dtype == "uint8"
        else torch.randn(*leading, *spec.shape, generator=g)
        for name, spec in specs.items()
    }


CONFIGS: list[dict[str, Any]] = [
    {},
    {"core": "gru", "core_size": 16},
    {"core": "lstm", "core_size": 16, "head_sizes": (12, 8)},
    {"shared": False, "head_sizes": (8,)},
    {"normalise_observations": True, "core": "gru", "core_size": 8},
    {"state_dependent_std": True},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("action", [DISCRETE, BOX, HYBRID], ids=["discrete", "box", "hybrid"])
def test_unroll_equals_single_steps(config: dict[str, Any], action: ActionSpec) -> None:
    model = ActorCritic(VECTOR, action, ModelConfig(**config))
    steps, rows = 5, 3
    x = observe(VECTOR, steps, rows)
    model.update_normaliser(x)
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    reset[0, 1] = reset[3, 0] = reset[3, 2] = True
    state = torch.randn(rows, model.state_size) if model.state_size else None
    whole = model.unroll(x, state, reset, [0, 3])
    assert whole.params.shape == (steps, rows, model.distribution.params_size)
    assert whole.value.shape == (steps, rows)
    assert whole.params.dtype == whole.value.dtype == torch.float32
    for t in range(steps):
        step = model({"obs": x["obs"][t]}, state, reset[t])
        state = step.rnn_state
        torch.testing.assert_close(step.params, whole.params[t], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.value, whole.value[t], rtol=1e-5, atol=1e-6)
    if model.state_size:
        assert whole.rnn_state is not None
        assert state is not None
        torch.testing.assert_close(state, whole.rnn_state, rtol=1e-5, atol=1e-6)
    else:
        assert whole.rnn_state is None


def test_state_none_means_zeros() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig(core="lstm", core_size=8))
    x = observe(VECTOR, 2, 3)
    zeros = model.initial_state(3)
    assert zeros is not None
    assert zeros.shape == (3, 16)
    assert torch.equal(model.unroll(x).params, model.unroll(x, zeros).params)
    first = {"obs": x["obs"][0]}
    assert torch.equal(model(first).value, model(first, zeros).value)
    assert ActorCritic(VECTOR, DISCRETE, ModelConfig()).initial_state(3) is None


def test_reset_steps_need_reset() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig(core="gru"))
    with pytest.raises(ValueError, match=r"reset_steps is \[1\] without reset; give reset as bool"):
        model.unroll(observe(VECTOR, 2, 3), None, None, [1])


def test_nature_model_has_the_published_size() -> None:
    spec = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")}
    model = ActorCritic(spec, DISCRETE, ModelConfig())
    assert sum(p.numel() for p in model.parameters()) == 1_684_128 + 513 * 5


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_initial_heads(action: ActionSpec) -> None:
    model = ActorCritic(VECTOR, action, ModelConfig(initial_log_std=-0.5))
    policy, value = model.heads.policy.weight, model.heads.value.weight
    torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(len(policy)), rtol=0, atol=1e-8)
    torch.testing.assert_close(value @ value.T, torch.eye(1), rtol=0, atol=1e-5)
    if action is BOX:
        assert (model(observe(VECTOR, 3)).params[:, 2:] == -0.5).all()


def test_state_dependent_deviation_is_bounded_and_starts_as_asked() -> None:
    config = ModelConfig(state_dependent_std=True, initial_log_std=-1.0, log_std_bounds=(-2.0, 0.5))
    model = ActorCritic(VECTOR, HYBRID, config)
    log_std = model(observe(VECTOR, 20)).params[:, -2:]
    torch.testing.assert_close(log_std, torch.full((20, 2), -1.0), rtol=0, atol=0.1)
    with torch.no_grad():
        model.heads.policy.weight.mul_(1e5)
    log_std = model(observe(VECTOR, 20)).params[:, -2:]
    assert log_std.min() == -2.0
    assert log_std.max() == 0.5


def test_separate_networks_share_nothing() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig(shared=False, head_sizes=(8,)))
    output = model(observe(VECTOR, 3))
    names = {name for name, _ in model.named_parameters()}
    of_value = torch.autograd.grad(output.value.sum(), list(model.parameters()), allow_unused=True, retain_graph=True)
    of_policy = torch.autograd.grad(output.params.square().sum(), list(model.parameters()), allow_unused=True)
    touched = [
        {n for n, g in zip(names_in(model), grads, strict=True) if g is not None} for grads in (of_value, of_policy)
    ]
    assert touched[0] | touched[1] == names
    assert not touched[0] & touched[1]


def test_a_central_critic_sees_what_the_actor_does_not() -> None:
    specs = {**VECTOR, CENTRAL_VIEW: ArraySpec(shape=(12,), dtype="float32")}
    config = ModelConfig(central_value=True, shared="auto", normalise_observations=True, mlp_sizes=(8, 4))
    model = ActorCritic(specs, DISCRETE, config)
    seen = observe(specs, 3)
    output = model(seen)
    other = model({**seen, CENTRAL_VIEW: seen[CENTRAL_VIEW] + 1.0})
    torch.testing.assert_close(other.params, output.params)
    assert not torch.isclose(other.value, output.value).any()
    of_critic = {name for name in model.state_dict() if is_of_critic(name)}
    assert {name.split(".")[0] for name in of_critic} == {"critic_encoder", "heads"}
    # Without it the entry is not used, although another policy of the run may have it.
    plain = ActorCritic(specs, DISCRETE, ModelConfig(mlp_sizes=(8, 4)))
    assert {name: x.shape for name, x in plain.state_dict().items()} == {
        name: x.shape for name, x in ActorCritic(VECTOR, DISCRETE, ModelConfig(mlp_sizes=(8, 4))).state_dict().items()
    }
    with pytest.raises(ValueError, match="use core='none'"):
        ModelConfig(central_value=True, core="gru", shared=True)


class Hungry(nn.Module):
    """An encoder that takes all entries that it is given, as in docs/your-own.md."""

    def __init__(self, observation: Any, action: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        self.output_size = sum(spec.size for spec in observation.values())

    def forward(self, observation: Any) -> Any:
        return torch.cat([entry.flatten(1) for entry in observation.values()], -1)


def test_an_encoder_gets_the_entries_that_it_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "factories", dict(ENCODERS.factories))
    register_encoder("hungry", Hungry)
    hidden = {name: ArraySpec(shape=(size,), dtype="float32") for name, size in ((CENTRAL_VIEW, 12), (TASK, 2))}
    specs = {**VECTOR, **hidden}
    seen = observe(specs, 3)
    config = ModelConfig(encoder="hungry", central_value=True, shared="auto")
    output = ActorCritic(specs, DISCRETE, config)(seen)
    assert output.value.shape == (3,)
    plain = ActorCritic(specs, DISCRETE, ModelConfig(encoder="hungry"))
    changed = {**seen, TASK: seen[TASK] + 1.0, CENTRAL_VIEW: seen[CENTRAL_VIEW] + 1.0}
    torch.testing.assert_close(plain(changed).params, plain(seen).params)


def names_in(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def test_squashing_is_passed_on() -> None:
    assert ActorCritic(VECTOR, BOX, ModelConfig(squash_actions=True)).distribution.squash
    assert not ActorCritic(VECTOR, BOX, ModelConfig()).distribution.squash


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_bfloat16_keeps_outputs_and_state_in_float32(core: str) -> None:
    model = ActorCritic(IMAGE, DISCRETE, ModelConfig(dense_size=32, core=core, core_size=8, normalise_returns=True))  # type: ignore[arg-type]
    x = observe(IMAGE, 4)
    state = torch.zeros(4, model.state_size) if model.state_size else None
    expected = model(x, state)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x, state)
    assert output.params.dtype == output.value.dtype == torch.float32
    torch.testing.assert_close(output.params, expected.params, rtol=0.05, atol=0.05)
    torch.testing.assert_close(output.value, expected.value, rtol=0.05, atol=0.1)
    if state is not None:
        assert output.rnn_state is not None
        assert output.rnn_state.dtype == torch.float32


def test_memory_format_changes_nothing_but_the_layout() -> None:
    model = ActorCritic(IMAGE, DISCRETE, ModelConfig(dense_size=32))
    x = observe(IMAGE, 3)
    expected = model(x).params
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    model.set_channels_last(False)
    assert all(w.is_contiguous() for w in weights)
    torch.testing.assert_close(model(x).params, expected, rtol=1e-4, atol=1e-6)


def test_returns_are_learned_in_normalised_units() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig(normalise_returns=True))
    assert model.normalises_returns
    assert not model.normalised_entries
    assert model.value_moments() == (0.0, 1.0)
    returns = torch.tensor([[10.0, 20.0], [30.0, torch.nan]])
    valid = torch.tensor([[True, True], [True, False]])
    model.update_value_normaliser(returns, valid)
    mean, std = model.value_moments()
    assert mean == 20.0
    assert std == pytest.approx(math.sqrt(200.0 / 3.0), rel=1e-6)
    assert model.denormalise_value(torch.tensor(1.0)).item() == pytest.approx(20.0 + std, rel=1e-6)
    assert model.normalise_value(torch.tensor(20.0 - std)).item() == pytest.approx(-1.0, rel=1e-6)


def test_without_normalisers_nothing_is_changed() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = observe(VECTOR, 3)
    model.update_normaliser(x)
    model.update_value_normaliser(torch.ones(3))
    assert before.keys() == model.state_dict().keys()
    assert model.denormalise_value(x["obs"]) is x["obs"]
    assert model.normalise_value(x["obs"]) is x["obs"]
    assert model.value_moments() == (0.0, 1.0)


def test_observation_statistics_are_used() -> None:
    model = ActorCritic(VECTOR, DISCRETE, ModelConfig(normalise_observations=True))
    x = {"obs": torch.randn(200, 6) * 100 + 1000}
    plain = ActorCritic(VECTOR, DISCRETE, ModelConfig())
    plain.load_state_dict(model.state_dict(), strict=False)
    model.update_normaliser(x)
    normalised = {"obs": (x["obs"] - x["obs"].mean(0)) / x["obs"].std(0, correction=0)}
    torch.testing.assert_close(model(x).params, plain(normalised).params, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_it_can_learn(core: str) -> None:
    # A contextual bandit: the best choice is the largest of the first four numbers.
    torch.manual_seed(0)
    model = make_model(VECTOR, DISCRETE, ModelConfig(core=core, core_size=32))  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    valid = torch.ones(256, dtype=torch.bool)
    rewards = []
    for _ in range(120):
        x = {"obs": torch.randn(256, 6)}
        output = model(x)
        with torch.no_grad():
            sample = model.distribution.sample_with_log_prob(output.params)
        assert sample.discrete is not None
        reward = (x["obs"][:, :4].argmax(-1, keepdim=True) == sample.discrete).float().squeeze(-1)
        log_prob = model.distribution.log_prob(output.params, sample.discrete, None)
        loss = policy_gradient_loss(log_prob, sample.log_prob, reward - output.value.detach(), valid, 256).loss
        loss = loss + value_loss(output.value, reward, valid, 256)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rewards.append(reward.mean().item())
    assert sum(rewards[:5]) / 5 < 0.45
    assert sum(rewards[-5:]) / 5 > 0.75


class _Wrapping(nn.Module):
    """A user's encoder around ours."""

    def __init__(self, observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        self.inner = ObservationEncoder(observation, replace(config, encoder="nature"))
        self.output_size = self.inner.output_size

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Encode at half the brightness."""
        return self.inner({name: x // 2 if x.dtype == torch.uint8 else x for name, x in observation.items()})


@pytest.mark.parametrize("encoder", ["auto", "wrapping"])
def test_every_first_layer_tracks_the_brightness_of_its_input(encoder: str) -> None:
    register_encoder("wrapping", _Wrapping)
    observation = {
        "front": ArraySpec(shape=(36, 40, 3), dtype="uint8"),
        "maps": ArraySpec(shape=(2, 48, 48), dtype="uint8"),
        "speed": ArraySpec(shape=(3,), dtype="float32"),
    }
    action = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
    config = ModelConfig(encoder=encoder, shared=False, dense_size=8, centre_pixels=True, normalise_observations=True)
    model = make_model(observation, action, config)
    assert model.centres_pixels
    x = {
        "front": torch.arange(0, 60, 20, dtype=torch.uint8).expand(5, 36, 40, 3),
        "maps": torch.full((5, 2, 48, 48), 200, dtype=torch.uint8),
        "speed": torch.zeros(5, 3),
    }
    model.update_pixel_levels(x)
    model.update_pixel_levels(x)
    share = 0.5 if encoder == "wrapping" else 1.0
    means = [m.moments.mean.tolist() for m in model.modules() if isinstance(m, ImageInput) and m.moments is not None]
    assert means == 2 * [[0.0, 20.0 * share, 40.0 * share], [200.0 * share, 200.0 * share]]
    counts = {m.moments.count.item() for m in model.modules() if isinstance(m, ImageInput) and m.moments is not None}
    assert counts == {10.0}
    for layer in model.modules():
        assert not layer._forward_pre_hooks


def test_nothing_is_centred_without_images() -> None:
    action = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
    config = ModelConfig(centre_pixels=True)
    assert not make_model({"obs": ArraySpec(shape=(3,), dtype="float32")}, action, config).centres_pixels

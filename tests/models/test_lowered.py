"""Weights cast in advance: outputs equal autocast's, and excluded modules are unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rollmill.models.actor_critic import ActorCritic, ActorCriticOutput
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState
from rollmill.models.lowered import can_be_lowered, fold_pixels, lower_weights, needs_autocast
from rollmill.models.observation import register_encoder
from rollmill.models.registry import make_model
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
CONFIGS = [
    ModelConfig(encoder="nature"),
    ModelConfig(encoder="sf_simplified", core="gru", core_size=24),
    ModelConfig(encoder="sf_full", core="lstm", core_size=24, normalise_observations=True),
    ModelConfig(encoder="impala", head_sizes=(16,), shared=False),
]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.encoder}-{c.core}")
@pytest.mark.parametrize("rows", [1, 3, 7, 16, 160])
@pytest.mark.parametrize("shape", [(4, 84, 84), (72, 96, 3)])
def test_outputs_are_those_of_autocast_bit_for_bit(config: ModelConfig, rows: int, shape: tuple[int, ...]) -> None:
    specs = {"obs": ArraySpec(shape=shape, dtype="uint8"), "v": ArraySpec(shape=(5,), dtype="float32")}
    observation = {"obs": torch.randint(0, 256, (rows, *shape), dtype=torch.uint8), "v": torch.randn(rows, 5)}
    lowered = _compare_with_autocast(config, specs, observation)
    assert any(p.dtype == torch.bfloat16 for p in lowered.parameters())


# Each with an observation that its encoder is for, and whether it runs without autocast.
PICTURE = ArraySpec(shape=(4, 84, 84), dtype="uint8")
GRID = ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=10)
BOARD = ArraySpec(shape=(6, 7, 2), dtype="int8", low=0, high=1)
PLAIN = [
    (ModelConfig(encoder="nature"), PICTURE, True),
    (ModelConfig(encoder="nature", centre_pixels=True), PICTURE, True),
    (ModelConfig(encoder="impala", centre_pixels=True), PICTURE, True),
    (ModelConfig(encoder="nature", activation="silu"), PICTURE, True),
    (ModelConfig(encoder="nature", activation="gelu", head_sizes=(16,)), PICTURE, True),
    (ModelConfig(encoder="nature", activation="tanh", shared=False), PICTURE, True),
    (ModelConfig(encoder="nature"), ArraySpec(shape=(4, 60, 80, 3), dtype="uint8"), True),
    (ModelConfig(encoder="impala"), ArraySpec(shape=(64, 64, 3), dtype="uint8"), True),
    (ModelConfig(encoder="sf_full"), PICTURE, True),
    (ModelConfig(encoder="nature"), ArraySpec(shape=(4, 84, 84), dtype="float32"), True),
    (ModelConfig(encoder="board", dense_size=16), BOARD, True),
    (ModelConfig(encoder="small"), GRID, True),
    (ModelConfig(encoder="small", normalise_grids=True), GRID, False),
    (ModelConfig(encoder="nature", centre_pixels="each"), PICTURE, False),
    (ModelConfig(encoder="nature", normalise_observations=True), PICTURE, False),
    (ModelConfig(encoder="nature", core="lstm", core_size=16), PICTURE, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "spec", "plain"), PLAIN)
@pytest.mark.parametrize("rows", [1, 5, 16, 48])
def test_networks_run_without_autocast_where_nothing_is_left_to_cast(
    config: ModelConfig, spec: ArraySpec, plain: bool, rows: int
) -> None:
    high = 255 if spec.high is None else int(spec.high)
    seen = torch.randint(0, high + 1, (rows, *spec.shape)).to(getattr(torch, spec.dtype))
    sound = ArraySpec(shape=(1, 2520), dtype="int16")
    specs = {"obs": spec, "v": ArraySpec(shape=(5,), dtype="float32"), "sound": sound}
    heard = torch.randint(-3000, 3000, (rows, 1, 2520), dtype=torch.int16)
    lowered = _compare_with_autocast(config, specs, {"obs": seen, "v": torch.randn(rows, 5), "sound": heard})
    assert needs_autocast(lowered) != plain


def test_the_encoder_of_boards_is_lowered_as_a_whole() -> None:
    specs = {"obs": ArraySpec(shape=(6, 7, 2), dtype="int8", low=0, high=1)}
    observation = {"obs": torch.randint(0, 2, (7, 6, 7, 2), dtype=torch.int8)}
    lowered = _compare_with_autocast(ModelConfig(encoder="board", dense_size=16), specs, observation)
    dense = [layer for layer in lowered.encoder.modules() if isinstance(layer, nn.Linear)]
    assert [layer.weight.dtype for layer in dense] == [torch.bfloat16] * 2


def _compare_with_autocast(
    config: ModelConfig, specs: dict[str, ArraySpec], observation: dict[str, torch.Tensor]
) -> ActorCritic:
    torch.manual_seed(0)
    model = ActorCritic(specs, ACTION, config)
    lowered = copy.deepcopy(model)
    lower_weights(lowered, torch.bfloat16)
    fold_pixels(lowered, torch.bfloat16)
    rows = len(observation["obs"])
    state = None if model.core is None else torch.randn(rows, model.state_size)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected, result = model(observation, state), lowered(observation, state)
    for one, other in zip(expected, result, strict=True):
        assert one is other is None or torch.equal(one, other)
    if not needs_autocast(lowered):
        with torch.inference_mode():
            for one, other in zip(expected, lowered(observation, state), strict=True):
                assert one is other is None or torch.equal(one, other)
    return lowered


def test_new_weights_are_loaded_into_lowered_ones() -> None:
    torch.manual_seed(0)
    specs = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")}
    source, target = (ActorCritic(specs, ACTION, ModelConfig(encoder="nature")) for _ in range(2))
    received = FlatState(target, alias=True)
    lower_weights(target, torch.bfloat16)
    received.bytes[:] = FlatState(source, alias=False).bytes
    received.unpack()
    for (name, a), b in zip(source.named_parameters(), target.parameters(), strict=True):
        assert torch.equal(a.to(b.dtype), b), name


class OwnEncoder(nn.Module):
    output_size = 8

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            features: torch.Tensor = self.layer(observation["v"])
        return features


class OwnModel(ActorCritic):
    """Always computes in float32."""

    def forward(self, *args: Any, **kwargs: Any) -> ActorCriticOutput:
        with torch.autocast("cpu", enabled=False):
            return super().forward(*args, **kwargs)


def test_subclasses_of_our_models_and_encoders_are_unchanged() -> None:
    specs = {"v": ArraySpec(shape=(3,), dtype="float32")}
    own = OwnModel(specs, ACTION, ModelConfig(core="gru", core_size=8))
    assert not can_be_lowered(own)
    changed = ActorCritic(specs, ACTION, ModelConfig())
    changed.encoder.encoders[0] = OwnEncoder()  # type: ignore[index,union-attr]  # typed as any module
    lower_weights(changed, torch.bfloat16)
    assert needs_autocast(changed)
    assert {p.dtype for p in changed.parameters()} == {torch.float32}


def test_user_modules_are_unchanged() -> None:
    register_encoder("own_for_lowering", OwnEncoder)
    specs = {"v": ArraySpec(shape=(3,), dtype="float32")}
    model = make_model(specs, ACTION, ModelConfig(encoder="own_for_lowering"))
    lower_weights(model, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        model({"v": torch.randn(2, 3)})

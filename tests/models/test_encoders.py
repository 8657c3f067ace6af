"""Choice of encoders, and encoders of vectors, choices and grids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.encoders import (
    ConvEncoder,
    DenseEncoder,
    GridEncoder,
    ImageInput,
)
from rollmill.models.errors import UnfitModelError
from rollmill.models.impala import ImpalaEncoder
from rollmill.models.observation import ObservationEncoder, entry_encoder
from rollmill.specs import ArraySpec

ATARI = ArraySpec(shape=(4, 84, 84), dtype="uint8", low=0, high=255)
DOOM = ArraySpec(shape=(72, 128, 3), dtype="uint8", low=0, high=255)
NARROW = ModelConfig(dense_size=32)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (ATARI, ConvEncoder),
        (ArraySpec(shape=(7, 7, 3), dtype="uint8"), ConvEncoder),
        (ArraySpec(shape=(3, 3, 2), dtype="uint8"), ConvEncoder),
        (ArraySpec(shape=(11,), dtype="float32"), DenseEncoder),
        (ArraySpec(shape=(2, 5), dtype="float64"), DenseEncoder),
        (ArraySpec(shape=(), dtype="int64", low=0, high=15), DenseEncoder),
        (ArraySpec(shape=(3, 40, 40), dtype="float32"), ConvEncoder),
    ],
)
def test_automatic_choice(spec: ArraySpec, kind: type[nn.Module]) -> None:
    encoder = entry_encoder("auto", "obs", spec, NARROW)
    assert isinstance(encoder, kind)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 10, (4, *spec.shape)).astype(spec.dtype))
    features = encoder(x)
    assert features.shape == (4, encoder.output_size)
    assert features.dtype == torch.float32
    assert features.isfinite().all()


def test_a_single_number_up_to_255_is_one_hot_and_not_scaled() -> None:
    encoder = DenseEncoder(ArraySpec(shape=(1,), dtype="uint8", low=0, high=255), (), ModelConfig())
    x = torch.tensor([[0], [7], [255]], dtype=torch.uint8)
    torch.testing.assert_close(encoder(x), torch.eye(256)[x[:, 0].long()])


def test_discrete_observations_become_one_hot() -> None:
    spec = ArraySpec(shape=(), dtype="int64", low=-2, high=3)
    encoder = DenseEncoder(spec, (8,), ModelConfig())
    first = encoder.layers[0]
    assert isinstance(first, nn.Linear)
    assert first.in_features == 6
    x = torch.tensor([-2, 0, 3])
    expected = (first.weight.T[torch.tensor([0, 2, 5])] + first.bias).tanh()
    torch.testing.assert_close(encoder(x), expected)


def test_byte_vectors_are_scaled() -> None:
    spec = ArraySpec(shape=(128,), dtype="uint8", low=0, high=255)
    encoder = DenseEncoder(spec, (), ModelConfig())
    assert encoder.output_size == 128
    x = torch.full((1, 128), 255, dtype=torch.uint8)
    torch.testing.assert_close(encoder(x), torch.ones(1, 128))


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("cnn", ATARI, "encoder of entry 'obs' is 'cnn'; allowed: auto, nature"),
        ("nature", ArraySpec(shape=(8,), dtype="float32"), "needs an image, but observation entry 'obs' has shape"),
        ("nature", ArraySpec(shape=(20, 20, 3), dtype="uint8"), "too small for the convolutions.*encoder='small'"),
    ],
)
def test_unfit_encoders_raise(kind: str, spec: ArraySpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entry_encoder(kind, "obs", spec, ModelConfig())


MIXED = {
    "image": DOOM,
    "game/health.x": ArraySpec(shape=(5,), dtype="float32"),
    "direction": ArraySpec(shape=(), dtype="int64", low=0, high=3),
}


@pytest.mark.parametrize(("encoder", "widths"), [("auto", (32, 64, 64)), ("sf_full", (32, 128, 128))])
def test_several_entries_are_concatenated(encoder: str, widths: tuple[int, ...]) -> None:
    module = ObservationEncoder(MIXED, ModelConfig(encoder=encoder, dense_size=32))
    x = {
        "direction": torch.tensor([0, 3]),
        "image": torch.randint(0, 256, (2, *DOOM.shape), dtype=torch.uint8),
        "game/health.x": torch.randn(2, 5),
    }
    features = module(x)
    assert module.output_size == sum(widths)
    parts = features.split(list(widths), -1)
    for part, own, name in zip(parts, module.encoders, MIXED, strict=True):
        assert torch.equal(part, own(x[name]))


@pytest.mark.parametrize(
    ("shape", "window", "positions"),
    [((6, 7, 2), 4, 3 * 4), ((3, 3, 2), 3, 1), ((4, 3, 194), 3, 2), ((2, 8, 8), 4, 25)],
)
def test_boards_are_seen_through_windows_that_hold_a_whole_line(
    shape: tuple[int, ...], window: int, positions: int
) -> None:
    spec = ArraySpec(shape=shape, dtype="int8", low=0, high=1)
    module = ObservationEncoder({"obs": spec}, ModelConfig(encoder="board", dense_size=16))
    first = next(layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d))
    assert first.kernel_size == (window, window)
    dense = next(layer for layer in module.modules() if isinstance(layer, torch.nn.Linear))
    assert dense.in_features == positions * first.out_channels
    board = torch.randint(0, 2, (5, *shape), dtype=torch.int8)
    features = module({"obs": board})
    assert features.shape == (5, 16)
    # Two dense layers: what is computed from lines is combined once more.
    lines, second = module.encoders[0].lines(board), module.encoders[0].dense
    assert torch.equal(features, torch.relu(second(lines)))


def test_what_is_no_board_gets_an_mlp() -> None:
    spec = ArraySpec(shape=(34,), dtype="int8", low=0, high=1)
    module = ObservationEncoder({"obs": spec}, ModelConfig(encoder="board", mlp_sizes=(8, 4)))
    assert module.output_size == 4


def test_single_entries_can_be_given_another_encoder() -> None:
    config = ModelConfig(entry_encoders={"image": "impala"}, dense_size=32)
    module = ObservationEncoder(MIXED, config)
    assert isinstance(module.encoders[0], ImpalaEncoder)
    with pytest.raises(UnfitModelError, match=r"'picture'\], but the observation has \['direction', .*'image'\]"):
        ObservationEncoder(MIXED, ModelConfig(entry_encoders={"picture": "mlp"}))


def test_initialisations() -> None:
    config = NARROW
    nature = entry_encoder("nature", "obs", ATARI, config)
    assert isinstance(nature, ConvEncoder)
    gram = nature.dense.weight @ nature.dense.weight.T
    torch.testing.assert_close(gram, 2.0 * torch.eye(32), rtol=0, atol=1e-4)
    assert (nature.dense.bias == 0).all()
    impala = entry_encoder("impala", "obs", ATARI, config)
    assert isinstance(impala, ImpalaEncoder)
    weight = impala.stages[2].residuals[0].first.weight
    fan_in = 32 * 9
    assert weight.abs().max() <= 2.0 / 0.8796 * fan_in**-0.5 + 1e-6
    assert weight.std().item() * fan_in**0.5 == pytest.approx(1.0, abs=4.5 / (2 * weight.numel()) ** 0.5)
    torch.manual_seed(0)
    plain = entry_encoder("nature", "obs", ATARI, ModelConfig(init="torch", dense_size=32))
    assert isinstance(plain, ConvEncoder)
    assert (plain.dense.bias != 0).any()


@pytest.mark.parametrize("shape", [(7, 6, 3), (3, 7, 6)])
def test_a_grid_of_categories_becomes_one_hot(shape: tuple[int, ...]) -> None:
    spec = ArraySpec(shape=shape, dtype="uint8", low=0, high=10)
    encoder = entry_encoder("auto", "image", spec, ModelConfig())
    assert isinstance(encoder, GridEncoder)
    x = torch.randint(0, 11, (5, *shape), dtype=torch.uint8)
    rows = x.permute(0, 2, 3, 1) if shape[0] == 3 else x
    one_hot = functional.one_hot(rows.long(), 11).reshape(5, 7, 6, 33).float().permute(0, 3, 1, 2).contiguous()
    maps = encoder.convolutions(one_hot).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(encoder(x), encoder.dense(maps).relu())


def test_a_normalised_grid_keeps_its_features_size_while_one_cell_shows() -> None:
    torch.manual_seed(0)
    spec = ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=10)
    encoder = entry_encoder("auto", "image", spec, ModelConfig(normalise_grids=True))
    assert isinstance(encoder, GridEncoder)
    key = torch.ones((1, 7, 7, 3), dtype=torch.uint8)
    ball = key.clone()
    key[0, 3, 3, 0], ball[0, 3, 3, 0] = 5, 6
    for scale in (1.0, 10.0):  # for any size of the weights
        with torch.no_grad():
            encoder.dense.weight *= scale
        size = encoder(key).square().mean().sqrt()
        assert 0.3 < size < 1.0
        assert (encoder(key) - encoder(ball)).square().mean().sqrt() > 0.05 * size


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        (ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=255), ModelConfig()),
        (ArraySpec(shape=(7, 7, 3), dtype="uint8"), ModelConfig()),
        (ArraySpec(shape=(7, 7, 3), dtype="float32", low=0, high=10), ModelConfig()),
        (
            ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=10),
            ModelConfig(normalise_observations=True, normalise_images=True),
        ),
    ],
)
def test_other_small_grids_stay_numbers(spec: ArraySpec, config: ModelConfig) -> None:
    assert isinstance(entry_encoder("auto", "image", spec, config), ConvEncoder)


def test_bytes_that_were_normalised_are_not_scaled_again() -> None:
    spec = ArraySpec(shape=(16,), dtype="uint8", low=0, high=255)
    encoder = entry_encoder("mlp", "ram", spec, ModelConfig())
    assert isinstance(encoder, DenseEncoder)
    x = torch.randn(4, 16)
    torch.testing.assert_close(encoder(x), encoder.layers(x))
    whole = torch.randint(0, 256, (4, *spec.shape), dtype=torch.uint8)
    torch.testing.assert_close(encoder(whole), encoder.layers(whole / 255.0))


@pytest.mark.parametrize(("low", "high"), [(1, 6), (-3, 2), (-9, -4)])
def test_a_choice_with_any_bounds(low: int, high: int) -> None:
    spec = ArraySpec(shape=(1,), dtype="int64", low=low, high=high)
    encoder = entry_encoder("auto", "die", spec, ModelConfig(mlp_sizes=()))
    assert encoder.output_size == 6
    x = torch.arange(low, high + 1)[:, None]
    assert torch.equal(encoder(x), torch.eye(6))
    # A worker runs the network on placeholder data, which may be an invalid choice.
    assert not encoder(torch.tensor([[high + 1]])).any()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "uint64"])
def test_a_choice_of_any_integers(dtype: str) -> None:
    spec = ArraySpec(shape=(1,), dtype=dtype, low=2, high=5)
    encoder = DenseEncoder(spec, (), ModelConfig())
    x = torch.as_tensor(np.array([[2], [5]], dtype))
    assert encoder(x).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("first", [True, False])
def test_each_picture_is_centred_by_its_own_mean(first: bool) -> None:
    shape = (4, 20, 24) if first else (20, 24, 4)
    spec = ArraySpec(shape=shape, dtype="uint8", low=0, high=255)
    layer = ImageInput(spec, 8, 4, 2, centred="each")
    pictures = torch.randint(0, 60, (5, *shape), dtype=torch.uint8) + torch.arange(0, 200, 40).to(torch.uint8).view(
        5, 1, 1, 1
    )
    numbers = pictures.double() if first else pictures.double().permute(0, 3, 1, 2)
    centred = (numbers - numbers.mean((2, 3), keepdim=True)) / 255
    assert layer.bias is not None
    wanted = functional.conv2d(centred, layer.weight.double(), layer.bias.double(), 2)
    torch.testing.assert_close(layer(pictures).double(), wanted, rtol=1e-4, atol=1e-4)

"""Image encoders: layouts, published sizes and the scaling of pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.encoders import (
    AsImageEncoder,
    ConvEncoder,
    ImageInput,
    channels_first,
    is_grid,
    is_large_image,
)
from rollmill.models.impala import ImpalaEncoder
from rollmill.models.observation import ObservationEncoder, entry_encoder
from rollmill.specs import ArraySpec

ATARI = ArraySpec(shape=(4, 84, 84), dtype="uint8", low=0, high=255)
DOOM = ArraySpec(shape=(72, 128, 3), dtype="uint8", low=0, high=255)
NARROW = ModelConfig(dense_size=32)


def pixels(spec: ArraySpec, n: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *spec.shape), dtype=torch.uint8, generator=g)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "first", "grid", "large"),
    [
        ((4, 84, 84), True, True, True),
        ((84, 84, 4), False, True, True),
        ((3, 72, 128), True, True, True),
        ((36, 36, 3), False, True, True),
        ((35, 64, 3), False, True, False),
        ((7, 7, 3), False, True, False),
        ((9, 2, 3), False, False, False),
        ((3, 3, 2), False, True, False),
        ((7, 7, 20), False, True, False),
        ((8, 8, 111), False, True, False),
        ((5, 4, 26), False, True, False),
        ((20, 7, 7), True, True, False),
        ((1, 10, 12), True, True, False),
        ((210, 160, 3), False, True, True),
        ((3, 210, 160), True, True, True),
        ((16,), False, False, False),
    ],
)
def test_layout_follows_from_the_shape(shape: tuple[int, ...], first: bool, grid: bool, large: bool) -> None:
    spec = ArraySpec(shape=shape, dtype="uint8")
    if len(shape) == 3:
        assert channels_first(spec) is first
    assert is_grid(spec) is grid
    assert is_large_image(spec) is large


def test_nature_equals_a_literal_network_on_scaled_pixels() -> None:
    encoder = entry_encoder("nature", "obs", ATARI, ModelConfig())
    assert isinstance(encoder, ConvEncoder)
    assert parameters(encoder) == 32 * (4 * 8 * 8 + 1) + 64 * (32 * 4 * 4 + 1) + 64 * (64 * 3 * 3 + 1) + 512 * (
        3136 + 1
    )
    first, second, third = (encoder.convolutions[i] for i in (0, 2, 4))
    x = pixels(ATARI, 5)
    maps = x.double() / 255.0
    for layer, stride in ((first, 4), (second, 2), (third, 1)):
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        maps = functional.conv2d(maps, layer.weight.double(), layer.bias.double(), stride).relu()
    assert maps.shape == (5, 64, 7, 7)
    flat = maps.permute(0, 2, 3, 1).flatten(1)
    expected = functional.linear(flat, encoder.dense.weight.double(), encoder.dense.bias.double()).relu()
    torch.testing.assert_close(encoder(x), expected, rtol=1e-4, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("spec", [ATARI, DOOM], ids=["CHW", "HWC"])
@pytest.mark.parametrize("kind", ["nature", "impala"])
def test_all_pixel_formats_give_the_same_result(spec: ArraySpec, kind: str) -> None:
    encoder = entry_encoder(kind, "obs", spec, NARROW)
    x = pixels(spec, 3)
    expected = encoder(x)
    first = next(m for m in encoder.modules() if hasattr(m, "channels_last"))
    close = {"rtol": 1e-4, "atol": 1e-5}
    # Normalised pixels have the same axes and are not scaled again.
    torch.testing.assert_close(encoder(x.float() / 255.0), expected, **close)
    assert torch.equal(encoder(x.flip(0).flip(0)), expected)
    noncontiguous = torch.cat([x, x])[::2]
    torch.testing.assert_close(encoder(noncontiguous), encoder(noncontiguous.contiguous()))
    first.channels_last = False
    torch.testing.assert_close(encoder(x), expected, **close)


@pytest.mark.parametrize("kind", ["nature", "sf_simplified", "impala"])
@pytest.mark.parametrize("shape", [(4, 84, 84), (72, 128, 3), (3, 84, 84, 3), (84, 84)])
def test_centred_pixels_are_the_same_as_pixels_less_their_usual_brightness(kind: str, shape: tuple[int, ...]) -> None:
    spec = ArraySpec(shape=shape, dtype="uint8")
    config = ModelConfig(dense_size=8, centre_pixels=True)
    torch.manual_seed(0)
    encoder = entry_encoder(kind, "obs", spec, config)
    torch.manual_seed(0)
    plain = entry_encoder(kind, "obs", spec, replace(config, centre_pixels=False))
    x = pixels(spec, 6) // 3 + 100
    torch.testing.assert_close(encoder(x), plain(x), rtol=1e-4, atol=1e-5)  # before the first update
    first = next(module for module in encoder.modules() if isinstance(module, ImageInput))
    assert first.moments is not None
    picture = x.permute(0, 1, 4, 2, 3).reshape(6, 9, 84, 84) if len(shape) == 4 else x
    picture = x.permute(0, 3, 1, 2) if shape == (72, 128, 3) else picture.reshape(6, -1, *picture.shape[-2:])
    stored = picture if first.channels_first else picture.permute(0, 2, 3, 1)
    first.update_pixel_level(stored[:2])
    first.update_pixel_level(stored[2:])
    level = torch.from_numpy(np.quantile(picture.flatten(2).numpy(), 0.5, axis=-1, method="lower").mean(0))
    torch.testing.assert_close(first.moments.mean, level, check_dtype=False)
    got = first(stored)
    centred = functional.conv2d((picture - level[:, None, None]) / 255.0, first.weight.double(), stride=first.stride)
    if first.padding == (1, 1):
        got = got[:, :, 1:-1, 1:-1]  # without the black padding
    torch.testing.assert_close(got, centred, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_what_a_centred_filter_learns_has_no_common_part() -> None:
    """The sum of a filter's gradient equals the gradient for uniform images minus their brightness: zero."""
    encoder = entry_encoder("nature", "obs", ATARI, ModelConfig(dense_size=8, centre_pixels=True))
    first = next(module for module in encoder.modules() if isinstance(module, ImageInput))
    x = torch.full((3, *ATARI.shape), 90, dtype=torch.uint8)
    first.update_pixel_level(x)
    first(x).square().sum().backward()
    assert first.weight.grad is not None
    torch.testing.assert_close(first.weight.grad, torch.zeros_like(first.weight), rtol=0, atol=1e-5)


def test_categories_and_normalised_pictures_are_not_centred() -> None:
    config = ModelConfig(dense_size=8, centre_pixels=True)
    board = entry_encoder("small", "obs", ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=255), config)
    assert all(module.moments is None for module in board.modules() if isinstance(module, ImageInput))
    for kind in ("nature", "impala"):
        normalised = replace(config, normalise_images=True, normalise_observations=True)
        encoder = entry_encoder(kind, "obs", ATARI, normalised)
        assert all(module.moments is None for module in encoder.modules() if isinstance(module, ImageInput))


@pytest.mark.parametrize(
    ("shape", "high", "scale"),
    [
        ((84, 84, 3), 255, 1 / 255),
        ((32, 32, 3), 255, 1 / 255),
        ((40, 40, 5), 1, 1.0),
        ((7, 7, 3), 255, 1.0),  # MiniGrid declares its categories like this
        ((19, 19, 2), 20, 1.0),
    ],
)
def test_pixels_are_scaled_and_categories_are_not(shape: tuple[int, ...], high: float, scale: float) -> None:
    spec = ArraySpec(shape=shape, dtype="uint8", low=0, high=high)
    kind = "nature" if min(shape[:2]) >= 36 else "small"
    encoder = entry_encoder(kind, "obs", spec, ModelConfig(dense_size=8))
    if isinstance(encoder, ConvEncoder):
        first = encoder.convolutions[0]
        assert isinstance(first, ImageInput)
        assert first.pixel_scale == pytest.approx(scale)
    else:
        assert scale == 1.0


@pytest.mark.parametrize("shape", [(16, 16, 3), (3, 35, 35), (32, 160, 3), (4, 20, 20)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pictures_too_small_for_natures_strides_get_smaller_ones(shape: tuple[int, ...], dtype: str) -> None:
    spec = ArraySpec(shape=shape, dtype=dtype, low=0, high=255 if dtype == "uint8" else 1)
    encoder = entry_encoder("auto", "obs", spec, ModelConfig())
    assert isinstance(encoder, ConvEncoder)
    assert parameters(encoder) < 2e6
    assert encoder(pixels(spec, 2) if dtype == "uint8" else torch.rand(2, *shape)).shape == (2, 128)


def test_a_board_with_many_planes_keeps_every_place() -> None:
    encoder = entry_encoder("auto", "obs", ArraySpec(shape=(19, 19, 17), dtype="float32"), ModelConfig())
    assert isinstance(encoder, ConvEncoder)
    assert [layer.stride for layer in encoder.convolutions if isinstance(layer, nn.Conv2d)] == [(1, 1)] * 3


@pytest.mark.parametrize("shape", [(30, 3, 4), (4, 3, 10), (3, 12, 4)])
def test_thin_grids_get_an_encoder(shape: tuple[int, ...]) -> None:
    spec = ArraySpec(shape=shape, dtype="float32")
    assert entry_encoder("auto", "obs", spec, NARROW)(torch.rand(2, *shape)).shape == (2, 32)


@pytest.mark.parametrize("first", [True, False])
def test_a_stack_of_colour_frames_is_one_image_of_many_channels(first: bool) -> None:
    shape = (4, 3, 40, 44) if first else (4, 40, 44, 3)
    spec = ArraySpec(shape=shape, dtype="uint8", low=0, high=255)
    encoder = entry_encoder("auto", "obs", spec, NARROW)
    assert isinstance(encoder, AsImageEncoder)
    x = pixels(spec, 2)
    frames = x if first else x.permute(0, 1, 4, 2, 3)
    side_by_side = torch.cat([frames[:, i] for i in range(4)], 1)
    given = side_by_side if first else side_by_side.permute(0, 2, 3, 1)
    torch.testing.assert_close(encoder(x), encoder.encoder(given.contiguous()))
    named = ObservationEncoder({"frames": spec, "speed": ArraySpec(shape=(2,), dtype="float32")}, NARROW)
    assert isinstance(named.encoders[0], AsImageEncoder)


def test_a_grey_picture_is_an_image_of_one_channel() -> None:
    spec = ArraySpec(shape=(40, 44), dtype="uint8", low=0, high=255)
    x = pixels(spec, 2)
    for kind in ("auto", "nature", "impala"):
        encoder = entry_encoder(kind, "obs", spec, NARROW)
        assert isinstance(encoder, AsImageEncoder)
        torch.testing.assert_close(encoder(x), encoder.encoder(x[:, None]))
    board = ArraySpec(shape=(19, 19), dtype="uint8", low=0, high=2)
    assert spec.is_image
    assert not board.is_image
    assert not isinstance(entry_encoder("auto", "obs", board, NARROW), AsImageEncoder)


def test_a_stack_of_float_pictures_is_one_image_too() -> None:
    spec = ArraySpec(shape=(2, 40, 44, 3), dtype="float32")
    encoder = entry_encoder("auto", "obs", spec, NARROW)
    assert isinstance(encoder, AsImageEncoder)
    assert encoder(torch.rand(2, *spec.shape)).shape == (2, encoder.output_size)


def test_bfloat16_weights_and_autocast_see_exact_pixels() -> None:
    encoder = entry_encoder("nature", "obs", ATARI, NARROW)
    x = pixels(ATARI, 4)
    expected = encoder(x)
    with torch.autocast("cpu", torch.bfloat16):
        casted = encoder(x)
        prepared = encoder((x.float() / 255.0).contiguous(memory_format=torch.channels_last))
    weights = encoder.to(torch.bfloat16)(x)
    for result in (casted, prepared, weights):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05)


def test_all_byte_values_survive_the_cast() -> None:
    # The first convolution reads out one pixel: weight 1 in one place.
    spec = ArraySpec(shape=(2, 36, 36), dtype="uint8")
    encoder = entry_encoder("nature", "obs", spec, ModelConfig())
    assert isinstance(encoder, ConvEncoder)
    first = encoder.convolutions[0]
    assert isinstance(first, nn.Conv2d)
    with torch.no_grad():
        first.weight.zero_()
        first.weight[0, 1, 0, 0] = 255.0
    x = torch.zeros(256, 2, 36, 36, dtype=torch.uint8)
    x[:, 1, 0, 0] = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(first(x)[:, 0, 0, 0], torch.arange(256).float(), rtol=1e-6, atol=1e-5)


def test_impala_has_the_published_size_and_same_padding() -> None:
    encoder = entry_encoder("impala", "obs", ATARI, ModelConfig())
    assert isinstance(encoder, ImpalaEncoder)
    assert encoder.dense.in_features == 11 * 11 * 32
    assert parameters(encoder) + 257 * 19 == 1_094_115


def test_impala_equals_a_literal_network() -> None:
    encoder = entry_encoder("impala", "obs", ATARI, NARROW)
    assert isinstance(encoder, ImpalaEncoder)
    x = pixels(ATARI, 2)

    def conv(maps: Tensor, layer: nn.Module) -> Tensor:
        assert isinstance(layer, nn.Conv2d)
        return functional.conv2d(maps, layer.weight, layer.bias, padding=1)

    maps = x.float() / 255.0
    for stage in encoder.stages:
        maps = conv(maps, stage.conv)
        # TensorFlow's SAME: (0, 1) where the side is even, (1, 1) where it is odd.
        even = maps.shape[-1] % 2 == 0
        maps = functional.pad(maps, (0, 1, 0, 1) if even else (1, 1, 1, 1), value=float("-inf"))
        maps = functional.max_pool2d(maps, 3, 2)
        for block in stage.residuals:
            maps = maps + conv(conv(maps.relu(), block.first).relu(), block.second)
    flat = maps.relu().permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(encoder(x), encoder.dense(flat).relu(), rtol=1e-4, atol=1e-5)


def test_impala_learns_through_its_skip_connections() -> None:
    encoder = entry_encoder("impala", "obs", ArraySpec(shape=(36, 36, 3), dtype="uint8"), NARROW).double()
    x = torch.rand(1, 36, 36, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: encoder(v)[:, :4].sum(), (x,), fast_mode=True)


@pytest.mark.parametrize(("kind", "activation"), [("nature", nn.ReLU), ("sf_simplified", nn.ELU), ("impala", nn.ReLU)])
def test_published_activations(kind: str, activation: type[nn.Module]) -> None:
    encoder = entry_encoder(kind, "obs", DOOM, NARROW)
    assert isinstance(encoder.activation, activation)
    changed = entry_encoder(kind, "obs", DOOM, ModelConfig(activation="gelu", dense_size=32))
    assert isinstance(changed.activation, nn.GELU)
    assert torch.isfinite(changed(pixels(DOOM, 2))).all()


def test_sample_factory_convolutions() -> None:
    encoder = entry_encoder("sf_simplified", "obs", DOOM, NARROW)
    assert isinstance(encoder, ConvEncoder)
    convolutions = [m for m in encoder.convolutions if isinstance(m, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in convolutions] == [
        (32, 8, 4),
        (64, 4, 2),
        (128, 3, 2),
    ]


def test_float_images_are_not_scaled() -> None:
    spec = ArraySpec(shape=(40, 40, 3), dtype="float32")
    encoder = entry_encoder("nature", "obs", spec, ModelConfig())
    assert isinstance(encoder, ConvEncoder)
    first = encoder.convolutions[0]
    assert isinstance(first, nn.Conv2d)
    x = torch.rand(2, 40, 40, 3)
    expected = functional.conv2d(x.permute(0, 3, 1, 2), first.weight, first.bias, 4)
    torch.testing.assert_close(first(x), expected)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32])
def test_pixels_of_wide_integers_are_scaled_by_their_highest_number(dtype: torch.dtype) -> None:
    wide = replace(ATARI, dtype=str(dtype).removeprefix("torch."), high=65_535)
    torch.manual_seed(0)
    of_bytes, of_wide = ImageInput(ATARI, 8, 8, 4), ImageInput(wide, 8, 8, 4)
    of_wide.load_state_dict(of_bytes.state_dict())
    x = pixels(ATARI, 2)
    torch.testing.assert_close(of_wide((x.int() * 257).to(dtype)), of_bytes(x))

"""What specs of arrays, actions and environments say of themselves."""

from __future__ import annotations

import pytest

from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec

LARGEST = 3.4028234663852886e38  # of float32
MIXED = ActionSpec(
    heads=(
        CategoricalHead(n=3),
        BoxHead(low=(0.0, -5.0), high=(1.0, 5.0), shape=(2,)),
        CategoricalHead(n=2, start=4),
        BoxHead(low=(7.0,), high=(9.0,), shape=(1,)),
    ),
    structure="tuple",
)


def test_an_array_has_the_size_of_its_shape_and_dtype() -> None:
    assert (ArraySpec(shape=(4, 84, 84), dtype="uint8").size, ArraySpec(shape=(4, 84, 84), dtype="uint8").nbytes) == (
        28_224,
        28_224,
    )
    assert (ArraySpec(shape=(3,), dtype="float64").size, ArraySpec(shape=(3,), dtype="float64").nbytes) == (3, 24)
    assert (ArraySpec(shape=(), dtype="int16").size, ArraySpec(shape=(), dtype="int16").nbytes) == (1, 2)


@pytest.mark.parametrize(
    ("shape", "dtype", "is_sound"),
    [
        ((2, 2520), "int16", True),
        ((1, 256), "int16", True),
        ((2, 255), "int16", False),
        ((3, 2520), "int16", False),
        ((2520,), "int16", False),
        ((2, 2520), "float32", False),
    ],
)
def test_sounds_are_samples_of_one_or_two_channels(shape: tuple[int, ...], dtype: str, is_sound: bool) -> None:
    assert ArraySpec(shape=shape, dtype=dtype).is_sound == is_sound


@pytest.mark.parametrize(
    ("shape", "dtype", "bounds", "is_image", "is_categorical"),
    [
        ((84, 84, 3), "uint8", (0, 255), True, False),
        ((4, 84, 84, 3), "uint8", (0, 255), True, False),
        ((84, 84), "uint8", (0, 255), True, False),
        ((84, 84), "uint8", (None, None), True, False),
        ((84, 84, 3), "float32", (0, 1), False, False),
        ((4, 3, 84, 84), "float32", (0, 1), False, False),
        ((20, 2, 40), "float32", (0, 1), False, False),
        ((3, 16), "uint8", (0, 255), False, False),
        ((16, 16), "uint8", (0, 255), True, False),
        ((16, 16), "uint8", (0, 31), False, True),
        ((16, 16), "uint8", (0, 32), True, False),
        ((7, 7, 3), "uint8", (0, 10), True, True),
        ((7, 7, 3), "uint8", (1, 10), True, False),
        ((128,), "uint8", (0, 255), False, False),
    ],
)
def test_pictures_and_boards_are_told_apart(
    shape: tuple[int, ...], dtype: str, bounds: tuple[float, float], is_image: bool, is_categorical: bool
) -> None:
    spec = ArraySpec(shape=shape, dtype=dtype, low=bounds[0], high=bounds[1])
    assert (spec.is_image, spec.is_categorical) == (is_image, is_categorical)
    env = EnvSpec(name="any", observation={"x": ArraySpec(shape=(2,), dtype="float32"), "y": spec}, action=MIXED)
    assert spec.is_picture == env.has_images == (is_image or 84 in shape)


@pytest.mark.parametrize(
    ("low", "high", "is_bounded"),
    [
        ((-1.0, 0.0), (1.0, 2.0), True),
        ((-1.0, float("-inf")), (1.0, 2.0), False),
        ((-1.0, 0.0), (float("inf"), 2.0), False),
        ((-LARGEST, 0.0), (LARGEST, 2.0), False),
        ((0.0, 0.0), (LARGEST, 2.0), True),
        ((-1e300, 0.0), (1.0, 2.0), False),
    ],
)
def test_a_box_is_bounded_where_float32_can_hold_its_range(
    low: tuple[float, ...], high: tuple[float, ...], is_bounded: bool
) -> None:
    head = BoxHead(low=low, high=high, shape=(2,))
    assert head.size == 2
    assert head.is_bounded == is_bounded


def test_columns_of_an_action_are_those_of_its_heads() -> None:
    assert MIXED.categorical_sizes == (3, 2)
    assert (MIXED.num_discrete, MIXED.num_continuous, MIXED.mask_size) == (2, 3, 5)


def test_an_action_in_the_unit_box_keeps_everything_but_its_bounds() -> None:
    unit = MIXED.in_unit_box
    assert unit.heads == (
        CategoricalHead(n=3),
        BoxHead(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,)),
        CategoricalHead(n=2, start=4),
        BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),
    )
    assert (unit.structure, unit.components, unit.keys) == (MIXED.structure, MIXED.components, MIXED.keys)
    assert unit.in_unit_box == unit

"""The encoder of sounds against a literal Fourier transform, and which entries get it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.encoders import DenseEncoder
from rollmill.models.lowered import lower_weights
from rollmill.models.normalisers import ObservationNormaliser
from rollmill.models.observation import ObservationEncoder, entry_encoder
from rollmill.models.sound import SoundEncoder
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

ACTION = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
DOOM = ArraySpec(shape=(2, 2520), dtype="int16", low=-32768, high=32767)


def loudness(sound: NDArray[np.int16]) -> NDArray[np.float64]:
    """Compute the MLP's input of one channel from the definitions, without a fast transform."""
    samples = len(sound)
    time = np.arange(samples)
    window = 0.54 - 0.46 * np.cos(2 * math.pi * time / samples)
    windowed = sound / 32768 * window
    logarithms = []
    for frequency in range(samples // 2):
        magnitude = abs(sum(windowed * np.exp(-2j * math.pi * frequency * time / samples)))
        # log(m + 1e-5), mapped so that m = 0 gives 0 and m = 1 gives 1.
        lowest, one = math.log(1e-5), math.log(1 + 1e-5)
        logarithms.append((math.log(magnitude + 1e-5) - lowest) / (one - lowest))
    return np.array([max(logarithms[8 * group : 8 * group + 8]) for group in range(samples // 2 // 8)])


@pytest.mark.parametrize("samples", [16, 100, 333, 1260])
def test_inputs_are_logarithms_of_pooled_magnitudes(samples: int) -> None:
    rng = np.random.default_rng(0)
    time = np.arange(samples)
    sounds = np.zeros((3, 2, samples), np.int16)
    sounds[0] = rng.integers(-32768, 32768, (2, samples))
    sounds[1, 0] = 3000 * np.sin(time * 0.7)
    sounds[2, 1] = 32767
    encoder = SoundEncoder(ArraySpec(shape=(2, samples), dtype="int16"), ModelConfig())
    found = encoder.loudness(torch.from_numpy(sounds))
    assert found.dtype == torch.float32
    expected = [[loudness(channel) for channel in sound] for sound in sounds]
    # A float32 transform is exact to some 1e-7 of the sound's whole magnitude.
    magnitude = np.exp(np.array(expected) * math.log1p(1e5)) * 1e-5
    scale = np.abs(sounds / 32768.0).sum(-1, keepdims=True)
    difference = np.abs(np.exp(found.double().numpy() * math.log1p(1e5)) * 1e-5 - magnitude)
    assert (difference <= 5e-7 * scale + 1e-5 * magnitude).all()
    loud = np.array(expected) > 0.9
    assert loud.sum() > loud[0].size // 2
    np.testing.assert_allclose(found.numpy()[loud], np.array(expected)[loud], atol=1e-4)
    assert (found[1, 1] == 0).all()


def test_channels_share_the_layers_and_their_features_stand_side_by_side() -> None:
    torch.manual_seed(0)
    encoder = SoundEncoder(DOOM, ModelConfig())
    assert encoder.output_size == 512
    sounds = torch.randint(-3000, 3000, (3, *DOOM.shape), dtype=torch.int16)
    features = encoder(sounds)
    first, second = (layer for layer in encoder.layers if isinstance(layer, torch.nn.Linear))
    for channel, part in enumerate(features.split(256, -1)):
        hidden = (encoder.loudness(sounds)[:, channel] @ first.weight.T + first.bias).relu()
        torch.testing.assert_close(part, (hidden @ second.weight.T + second.bias).relu())
    torch.testing.assert_close(encoder(sounds.flip(1)), features.roll(256, -1))
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert encoder.state_dict().keys() == {f"layers.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}


def test_samples_that_are_no_int16_are_used_as_they_are() -> None:
    bytes_, floats = (
        SoundEncoder(ArraySpec(shape=(400,), dtype=dtype), ModelConfig()) for dtype in ("int16", "float32")
    )
    sound = torch.randint(-3000, 3000, (2, 400), dtype=torch.int16)
    torch.testing.assert_close(bytes_.loudness(sound), floats.loudness(sound / 32768), atol=1e-5, rtol=0)
    assert floats(sound / 32768).shape == (2, 256)


def test_bfloat16_passes_are_close_and_their_weights_can_be_lowered() -> None:
    torch.manual_seed(0)
    model = ActorCritic({"sound": DOOM}, ACTION, ModelConfig())
    lowered = copy.deepcopy(model)
    lower_weights(lowered, torch.bfloat16)
    observation = {"sound": torch.randint(-3000, 3000, (5, *DOOM.shape), dtype=torch.int16)}
    with torch.inference_mode():
        exact = model(observation).value
        with torch.autocast("cpu", torch.bfloat16):
            half, low = model(observation).value, lowered(observation).value
    assert torch.equal(half, low)
    torch.testing.assert_close(half, exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("spec", "is_sound"),
    [
        (DOOM, True),
        (ArraySpec(shape=(1, 256), dtype="int16"), True),
        (ArraySpec(shape=(2, 255), dtype="int16"), False),
        (ArraySpec(shape=(3, 1000), dtype="int16"), False),
        (ArraySpec(shape=(1000,), dtype="int16"), False),
        (ArraySpec(shape=(2, 2520), dtype="float32"), False),
    ],
)
def test_which_entries_get_it(spec: ArraySpec, is_sound: bool) -> None:
    kind = SoundEncoder if is_sound else DenseEncoder
    assert type(entry_encoder("auto", "obs", spec, ModelConfig())) is kind
    picture = ArraySpec(shape=(72, 128, 3), dtype="uint8", low=0, high=255)
    for name in ("auto", "sf_simplified", "mlp"):
        encoder = ObservationEncoder({"obs": picture, "noise": spec}, ModelConfig(encoder=name, dense_size=16))
        assert type(encoder.encoders[1]) is kind
    other = DenseEncoder if is_sound else SoundEncoder
    chosen = ModelConfig(entry_encoders={"noise": "mlp" if is_sound else "sound"})
    assert type(ObservationEncoder({"noise": spec}, chosen).encoders[0]) is other


@pytest.mark.parametrize("shape", [(15,), (2, 3, 400)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"encoder 'sound' needs samples of shape \[S\] or .* but the entry has shape"):
        entry_encoder("sound", "obs", ArraySpec(shape=shape, dtype="int16"), ModelConfig())


def test_running_statistics_leave_sounds_alone() -> None:
    specs = {"sound": DOOM, "vector": ArraySpec(shape=(3,), dtype="float32")}
    assert ObservationNormaliser(specs, images=True, clip=10.0).names == ("vector",)

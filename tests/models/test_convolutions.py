"""What all convolutions of a network share: memory format, and statistics of image brightness."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rollmill.models.convolutions import centred_layers, has_convolutions, observing_pixel_levels, set_channels_last
from rollmill.models.encoders import ImageInput
from rollmill.specs import ArraySpec

PICTURE = ArraySpec(shape=(36, 36, 2), dtype="uint8")


class Network(nn.Module):
    """Two entries of images, of which only the first is centred, behind a layer that inverts them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ImageInput(PICTURE, 3, 3, centred=True)
        self.second = ImageInput(PICTURE, 3, 3)
        self.then = nn.Conv2d(3, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.then(self.first(255 - x) + self.second(x))
        return result


def test_centred_layers_are_those_with_statistics() -> None:
    network = Network()
    assert centred_layers(nn.ModuleDict({"encoder": network})) == [network.first]
    assert centred_layers(nn.Linear(2, 2)) == []


def test_has_convolutions_looks_at_all_depths() -> None:
    assert has_convolutions(nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1))))
    assert has_convolutions(Network())
    assert not has_convolutions(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)))


def test_images_are_observed_as_they_reach_the_layer_and_only_meanwhile() -> None:
    torch.manual_seed(0)
    network = Network()
    batches = [torch.randint(0, 256, (5, *PICTURE.shape), dtype=torch.uint8) for _ in range(3)]
    moments = network.first.moments
    assert moments is not None
    network(batches[0])
    assert moments.count == 0
    with observing_pixel_levels(network):
        network(batches[0])
        network(batches[1])
    network(batches[2])
    # The median of each channel of each image, inverted as the layer sees it; of an even count the lower one.
    seen = 255 - torch.cat(batches[:2])
    medians = seen.flatten(1, 2).sort(1).values[:, (36 * 36 - 1) // 2].double()
    assert moments.count == 10
    torch.testing.assert_close(moments.mean, medians.mean(0))
    torch.testing.assert_close(moments.var, medians.var(0, unbiased=False))


def test_observing_ends_if_the_network_fails() -> None:
    network = Network()
    with pytest.raises(ValueError, match="no"), observing_pixel_levels(network):
        raise ValueError("no")
    network(torch.zeros(1, *PICTURE.shape, dtype=torch.uint8))
    assert network.first.moments is not None
    assert network.first.moments.count == 0


def test_statistics_are_summed_over_ranks() -> None:
    """Two ranks with the same images have twice the count, and the same mean."""
    network, x = Network(), torch.full((4, *PICTURE.shape), 200, dtype=torch.uint8)
    with observing_pixel_levels(network, sum_over_ranks=lambda tensor: 2 * tensor):
        network(x)
    assert network.first.moments is not None
    assert network.first.moments.count == 8
    assert network.first.moments.mean.tolist() == [55.0, 55.0]


def test_the_memory_format_changes_weights_and_images_but_no_result() -> None:
    torch.manual_seed(0)
    network = Network()
    x = torch.randint(0, 256, (2, *PICTURE.shape), dtype=torch.uint8)
    expected = network(x)
    for enabled in (True, False, True):
        set_channels_last(network, enabled)
        assert (network.first.channels_last, network.second.channels_last) == (enabled, enabled)
        for layer in (network.first, network.second, network.then):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last) == enabled
            assert layer.weight.is_contiguous() != enabled
        torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4)

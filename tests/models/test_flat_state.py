"""Weights as bytes: both ends have the same values in any memory format."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.models.registry import make_model
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
OBSERVATION = {"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8"), "v": ArraySpec(shape=(3,), dtype="float32")}


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make_model(
        OBSERVATION, ACTION, ModelConfig(core="gru", core_size=16, normalise_observations=True, normalise_returns=True)
    )


@pytest.mark.parametrize("alias", [True, False])
@pytest.mark.parametrize("publisher_format", [torch.channels_last, torch.contiguous_format])
def test_packed_weights_equal_the_source(alias: bool, publisher_format: torch.memory_format) -> None:
    source, target = model(1), model(2)
    source.to(memory_format=publisher_format)  # type: ignore[call-overload]
    source.normaliser.update({"obs": torch.zeros(2, 4, 84, 84), "v": torch.randn(2, 3)})  # type: ignore[union-attr,operator]
    published, received = FlatState(source, alias=False), FlatState(target, alias=alias)
    assert published.bytes.nbytes == flat_nbytes(source)
    published.pack()
    received.bytes[:] = published.bytes
    if not alias:
        received.unpack()
    for (name, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_aliased_module_uses_written_bytes() -> None:
    source, target = model(1), model(2)
    observation = {"obs": torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8), "v": torch.randn(3, 3)}
    received = FlatState(target, alias=True)
    before = target(observation).value
    received.bytes[:] = FlatState(source, alias=False).bytes
    after = target(observation).value
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, source(observation).value)

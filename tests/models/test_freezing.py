"""Which parameters a pattern names, and what freezing leaves."""

from __future__ import annotations

import pytest
from torch import nn

from rollmill.models.freezing import FreezeError, freeze, is_named, suggest_part

NAME = "acting.encoder.layers.0.weight"


def network() -> nn.Module:
    return nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3)), "heads": nn.Linear(3, 2)}
    )


@pytest.mark.parametrize("pattern", ["encoder", "encoder.layers.*", "*.weight", "weight", "acting", NAME, "layers.?"])
def test_patterns_that_name_a_parameter(pattern: str) -> None:
    assert is_named(NAME, pattern)


@pytest.mark.parametrize("pattern", ["enc", "coder", "encoder.bias", "layers.1", "ENCODER", ""])
def test_patterns_that_do_not(pattern: str) -> None:
    assert not is_named(NAME, pattern)


def test_parameters_with_these_names_are_frozen() -> None:
    net = network()
    assert freeze(net, ("encoder.0", "heads.bias")) == 9 + 2
    assert freeze(net, ("encoder.0",)) == 0, "it was frozen before"
    trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    assert trained == ["encoder.2.weight", "encoder.2.bias", "heads.weight"]


def test_nothing_is_frozen_without_patterns() -> None:
    net = network()
    assert freeze(net, ()) == 0
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(FreezeError, match=r"freeze=encoders: no parameter or module .* [Tt]here are encoder\.0, "):
        freeze(network(), ("encoder", "encoders"))


def test_similar_parts_are_suggested() -> None:
    with pytest.raises(FreezeError, match=r"; did you mean 'encoder'\? There are encoder\.0, encoder\.2, heads"):
        freeze(network(), ("encodr",))
    names = [NAME, "acting.heads.policy.weight"]
    assert suggest_part("heads.polcy", names) == "did you mean 'heads.policy'? There are acting.encoder, acting.heads"
    assert suggest_part("transformer", names) == "there are acting.encoder, acting.heads"


def test_few_modules_are_named() -> None:
    names = [f"acting.Layer_{n}.{kind}" for n in range(15) for kind in ("weight", "bias")]
    found = suggest_part("transformer", names)
    assert found.startswith("there are acting.Layer_0, acting.Layer_1, ")
    assert found.endswith(", acting.Layer_11 and 3 more")


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(FreezeError, match="all parameters are frozen"):
        freeze(network(), ("encoder", "heads"))

"""Users' own encoders and models, and errors for unknown names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollmill.models import observation as observation_module
from rollmill.models import registry
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.observation import EncoderError, register_encoder
from rollmill.models.registry import (
    UnknownModelError,
    WrongModelError,
    make_model,
    register_model,
)
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
ACTION = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")


class Doubling(nn.Module):
    """An encoder without weights."""

    def __init__(self, observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        self.output_size = observation["obs"].size

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return observation["obs"] * 2.0


class Widthless(Doubling):
    """An encoder without output_size."""

    def __init__(self, observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> None:
        super().__init__(observation, action, config)
        del self.output_size


class OwnModel(ActorCritic):
    """A whole model."""


@pytest.fixture(autouse=True)
def forget_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry.MODELS, "factories", dict(registry.MODELS.factories))
    monkeypatch.setattr(observation_module.ENCODERS, "factories", dict(observation_module.ENCODERS.factories))
    return


def test_own_encoder() -> None:
    register_encoder("doubling", Doubling)
    register_encoder("doubling", Doubling)  # registering the same class again is allowed
    model = make_model(OBSERVATION, ACTION, ModelConfig(encoder="doubling", init="torch"))
    x = torch.randn(4, 3)
    torch.testing.assert_close(model({"obs": x}).params, model.heads.policy(2.0 * x))


def test_own_model() -> None:
    register_model("own", OwnModel)
    assert type(make_model(OBSERVATION, ACTION, ModelConfig(model="own"))) is OwnModel
    assert type(make_model(OBSERVATION, ACTION, ModelConfig())) is ActorCritic


def test_duplicate_names_raise() -> None:
    with pytest.raises(ValueError, match="model 'actor_critic' exists already; choose a name other than"):
        register_model("actor_critic", OwnModel)
    with pytest.raises(ValueError, match="encoder 'nature' exists already; choose a name other than auto, nature"):
        register_encoder("nature", Doubling)


def test_unknown_names_get_suggestions() -> None:
    register_encoder("doubling", Doubling)
    with pytest.raises(UnknownModelError, match=r"encoder 'dubling' is not known; did you mean 'doubling'\? known: "):
        make_model(OBSERVATION, ACTION, ModelConfig(encoder="dubling"))
    with pytest.raises(
        UnknownModelError, match=r"model 'xyz' is not known; known: actor_critic.*register_model\('xyz'"
    ):
        make_model(OBSERVATION, ACTION, ModelConfig(model="xyz"))


def test_encoder_without_output_size_raises() -> None:
    register_encoder("widthless", Widthless)
    with pytest.raises(ValueError, match=r"'widthless' \(Widthless\) has output_size=None; set it to the width"):
        make_model(OBSERVATION, ACTION, ModelConfig(encoder="widthless"))


def test_a_model_must_be_an_actor_critic() -> None:
    register_model("linear", lambda observation, action, config: nn.Linear(2, 2))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="model 'linear' gave a Linear; it must give an instance of a subclass of"):
        make_model(OBSERVATION, ACTION, ModelConfig(model="linear"))


def returns_nothing(*_: Any) -> Any:
    return None


def test_factory_that_returns_no_module_raises() -> None:
    register_encoder("forgetful", returns_nothing)
    with pytest.raises(EncoderError, match=r"'forgetful' returned None \(NoneType\): a torch.nn.Module is needed"):
        make_model(OBSERVATION, ACTION, ModelConfig(encoder="forgetful"))


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda x: x.sum(), r"a tensor of shape \(\)"),
        (lambda x: x[:, :2], r"a tensor of shape \(4, 2\)"),
        (lambda x: (x, None), "tuple"),
    ],
)
def test_features_of_another_width_raise(returned: Any, named: str) -> None:
    class Lying(Doubling):
        def forward(self, observation: Mapping[str, Tensor]) -> Any:
            return returned(observation["obs"])

    register_encoder("lying", Lying)
    model = make_model(OBSERVATION, ACTION, ModelConfig(encoder="lying"))
    with pytest.raises(EncoderError, match=rf"'lying' \(Lying\) returned {named} .* shape \[N, 3\] is needed"):
        model.encoder({"obs": torch.zeros(4, 3)})


def test_factory_that_returns_none_raises() -> None:
    register_model("empty", returns_nothing)
    with pytest.raises(WrongModelError, match="model 'empty' gave a NoneType"):
        make_model(OBSERVATION, ACTION, ModelConfig(model="empty"))

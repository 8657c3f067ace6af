"""The measured choice of a policy worker's precision: which networks are compared, how often, and which wins."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from rollmill.inference.precision import faster_precision
from rollmill.models.actor_critic import ActorCritic, ActorCriticOutput
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

ACTION = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
SPECS = {"v": ArraySpec(shape=(3,), dtype="float32")}
OBSERVATION = {"v": torch.zeros(4, 3)}


class Paced(ActorCritic):
    """A user's model, which takes given seconds in each precision and notes what it was asked."""

    seconds: dict[bool, float]
    asked: list[bool]

    def forward(self, observation: Any, rnn_state: Any = None, reset: Any = None) -> ActorCriticOutput:
        bf16 = torch.is_autocast_enabled("cpu")
        self.asked.append(bf16)
        time.sleep(self.seconds[bf16])
        return super().forward(observation, rnn_state, reset)


def paced(fp32: float, bf16: float, **model: Any) -> Paced:
    network = Paced(SPECS, ACTION, ModelConfig(**model))
    network.seconds, network.asked = {False: fp32, True: bf16}, []
    network.lock = threading.Lock()  # type: ignore[assignment]  # cannot be copied, and a user's model is not
    return network


@pytest.mark.parametrize(
    ("fp32", "bf16", "expected"), [(0.02, 0.01, "bf16"), (0.01, 0.02, "fp32"), (0.02, 0.02, "fp32")]
)
def test_bf16_is_chosen_only_if_it_is_clearly_faster(fp32: float, bf16: float, expected: str) -> None:
    assert faster_precision(paced(fp32, bf16), OBSERVATION) == expected


def test_both_are_timed_in_turn() -> None:
    network = paced(0.0, 0.0)
    faster_precision(network, OBSERVATION)
    assert network.asked == [False, True] * 7


def test_the_first_round_does_not_count() -> None:
    network = paced(0.01, 0.005)
    slow_once = iter([0.0, 0.2])

    class Warming(dict[bool, float]):
        def __getitem__(self, bf16: bool) -> float:
            return next(slow_once, super().__getitem__(bf16))

    network.seconds = Warming(network.seconds)
    assert faster_precision(network, OBSERVATION) == "bf16"


def test_a_measurement_ends_after_its_budget_with_two_rounds_that_count() -> None:
    network = paced(0.01, 0.01)
    faster_precision(network, OBSERVATION, budget_s=0.0)
    assert network.asked == [False, True] * 3


@pytest.mark.parametrize("core", ["none", "gru"])
def test_our_own_networks_keep_their_weights(core: Any) -> None:
    torch.manual_seed(0)
    network = ActorCritic(SPECS, ACTION, ModelConfig(core=core, core_size=8))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert faster_precision(network, OBSERVATION, budget_s=0.05) in ("fp32", "bf16")
    for name, value in network.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])

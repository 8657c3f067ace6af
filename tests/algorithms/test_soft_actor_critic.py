"""What SAC and its form for choices share: the temperature and its objective."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.discrete_sac import DiscreteSAC
from rollmill.algorithms.off_policy_config import SACConfig
from rollmill.algorithms.sac import SAC
from rollmill.algorithms.soft_actor_critic import SoftActorCritic, Temperature
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0,) * 2, high=(1.0,) * 2, shape=(2,)),), structure="box")
MODEL = ModelConfig(mlp_sizes=(16,))
KINDS = pytest.mark.parametrize(("action", "kind"), [(BOX, SAC), (DISCRETE, DiscreteSAC)])


def test_a_learned_temperature_is_its_logarithm_as_a_parameter() -> None:
    temperature = Temperature(SACConfig(initial_temperature=0.25))
    assert temperature.is_learned
    assert [name for name, _ in temperature.named_parameters()] == ["log"]
    assert temperature.log.item() == pytest.approx(math.log(0.25))
    assert temperature().item() == pytest.approx(0.25)
    assert not temperature().requires_grad


@pytest.mark.parametrize("value", [0.0, 0.2, 3])
def test_a_constant_temperature_is_saved_but_not_learned(value: float) -> None:
    temperature = Temperature(SACConfig(temperature=value, initial_temperature=7.0))
    assert not temperature.is_learned
    assert list(temperature.parameters()) == []
    assert list(temperature.state_dict()) == ["log"]
    assert temperature().item() == pytest.approx(value)


def test_a_constant_temperature_is_a_setting_and_not_loaded() -> None:
    def loaded(source: dict[str, Any], into: dict[str, Any]) -> float:
        temperature = Temperature(SACConfig(**into))
        temperature.load_state_dict(Temperature(SACConfig(**source)).state_dict())
        return float(temperature())

    assert loaded({"temperature": 0.2}, {"temperature": 0.05}) == pytest.approx(0.05)
    assert loaded({"initial_temperature": 0.3}, {"temperature": 0.0}) == 0.0
    assert loaded({"initial_temperature": 0.3}, {"initial_temperature": 0.7}) == pytest.approx(0.3)
    assert loaded({"temperature": 0.2}, {"initial_temperature": 0.7}) == pytest.approx(0.2)
    assert loaded({"temperature": 0.0}, {"initial_temperature": 0.7}) == pytest.approx(0.7)


@KINDS
def test_critics_actor_and_temperature_have_objectives_of_their_own(
    action: ActionSpec, kind: type[SoftActorCritic]
) -> None:
    config = SACConfig(actor_learning_rate=0.1, temperature_learning_rate=0.2)
    sac = kind(OBSERVATION, action, MODEL, config)
    critic, actor, temperature = sac.objectives()
    assert [o.name for o in (critic, actor, temperature)] == ["critic", "actor", "temperature"]
    assert [o.learning_rate for o in (critic, actor, temperature)] == [None, 0.1, 0.2]
    assert [o.every for o in (critic, actor, temperature)] == [1, sac.policy_delay, sac.policy_delay]
    assert {id(p) for p in critic.parameters} == {id(p) for p in sac.critics.parameters()}
    assert [id(p) for p in temperature.parameters] == [id(sac.temperature.log)]
    assert not {id(p) for p in actor.parameters} & {id(p) for p in critic.parameters}
    ((critics, targets),) = sac.target_pairs()
    assert (critics, targets) == (sac.critics, sac.target_critics)
    assert not any(p.requires_grad for p in targets.parameters())


@KINDS
def test_a_fixed_temperature_has_no_objective(action: ActionSpec, kind: type[SoftActorCritic]) -> None:
    sac = kind(OBSERVATION, action, MODEL, SACConfig(temperature=0.2))
    assert [o.name for o in sac.objectives()] == ["critic", "actor"]
    assert sac.temperature().item() == pytest.approx(0.2)


@KINDS
@pytest.mark.parametrize(("target", "grows"), [(10.0, True), (-10.0, False)])
def test_temperature_follows_the_entropy(
    action: ActionSpec, kind: type[SoftActorCritic], target: float, grows: bool, make_batch: Any
) -> None:
    algorithm = kind(OBSERVATION, action, MODEL, SACConfig(target_entropy=target, temperature_learning_rate=0.1))
    Update(algorithm, OptimiserConfig()).step([make_batch(OBSERVATION, action)])
    assert (algorithm.temperature() > 1.0).item() is grows


def test_the_temperatures_loss_takes_the_entropy_that_was_left_for_its_batch_once(make_batch: Any) -> None:
    sac = SAC(OBSERVATION, BOX, MODEL, SACConfig(initial_temperature=0.5))
    batch: TransitionBatch = make_batch(OBSERVATION, BOX)
    other: TransitionBatch = make_batch(OBSERVATION, BOX, seed=1)
    left = torch.full((8,), 100.0, requires_grad=True)

    def own(of: TransitionBatch) -> float:
        excess = sac.excess_entropy(of, torch.Generator().manual_seed(2))
        return math.log(0.5) * excess.mean().item()

    sac.leave_excess_entropy(batch, left)
    loss = sac.temperature_loss(batch, None)
    assert loss.value.item() == pytest.approx(math.log(0.5) * 100.0)
    assert loss.statistics["temperature"].item() == pytest.approx(0.5)
    loss.value.backward()
    assert left.grad is None
    assert sac.temperature.log.grad is not None
    assert sac.temperature.log.grad.item() == pytest.approx(100.0)
    again = sac.temperature_loss(batch, torch.Generator().manual_seed(2))
    assert again.value.item() == pytest.approx(own(batch), rel=1e-5)
    sac.leave_excess_entropy(batch, left)
    of_other = sac.temperature_loss(other, torch.Generator().manual_seed(2))
    assert of_other.value.item() == pytest.approx(own(other), rel=1e-5)


def test_a_constant_temperature_keeps_no_batch(make_batch: Any) -> None:
    sac = SAC(OBSERVATION, BOX, MODEL, SACConfig(temperature=0.5))
    sac.leave_excess_entropy(make_batch(OBSERVATION, BOX), torch.zeros(8))
    assert sac._excess is None

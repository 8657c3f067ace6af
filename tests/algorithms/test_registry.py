"""Users' own algorithms, and errors for unknown names and unfit specs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rollmill.algorithms import registry
from rollmill.algorithms.base import Loss
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.discrete_sac import DiscreteSAC
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import DQNConfig, OwnOffPolicyConfig, off_policy_config_of
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.algorithms.registry import UnknownAlgorithmError, make_algorithm, register_algorithm
from rollmill.algorithms.sac import SAC
from rollmill.algorithms.td3 import DDPG, TD3
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.update import Update
from rollmill.losses.dqn import taken_values
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, Head

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
BOX = ActionSpec(heads=(BoxHead(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,)),), structure="box")
MODEL = ModelConfig(mlp_sizes=(8,))


class ConservativeDQN(DQN):
    """CQL(H) for discrete actions (Kumar et al. 2020, https://arxiv.org/abs/2006.04779, equation 4)."""

    def loss(self, batch: TransitionBatch, generator: torch.Generator | None) -> Loss:
        assert batch.discrete is not None
        usual = super().loss(batch, generator)
        q = self.values(self.acting, batch.observation, batch.action_mask)
        gap = (q.logsumexp(-1) - taken_values(q, batch.discrete)).mean()
        return usual._replace(value=usual.value + gap, statistics={**usual.statistics, "gap": gap.detach()})


@pytest.fixture(autouse=True)
def forget_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry.ALGORITHMS, "factories", dict(registry.ALGORITHMS.factories))
    return


def munchausen_dqn() -> type[DQN]:
    """Run the registry's example."""
    assert registry.__doc__ is not None
    example = registry.__doc__.partition("::\n")[2].partition("\nand then")[0]
    found: dict[str, Any] = {}
    exec(textwrap.dedent(example), found)
    own: type[DQN] = found["MunchausenDQN"]
    return own


@pytest.mark.parametrize("make", [munchausen_dqn, lambda: ConservativeDQN])
def test_user_algorithms_learn(make: Callable[[], type[DQN]], make_batch: Callable[..., TransitionBatch]) -> None:
    cls = make()
    register_algorithm("own", cls)
    register_algorithm("own", cls)  # registering the same class again is allowed
    algorithm = make_algorithm(OBSERVATION, DISCRETE, MODEL, OwnOffPolicyConfig(algorithm="own"))
    assert type(algorithm) is cls
    assert registry.ALGORITHMS.is_registered("own")
    assert not registry.ALGORITHMS.is_registered("dqn")
    assert algorithm.tau == 1.0
    updater = Update(algorithm, OptimiserConfig(learning_rate=1e-2))
    batch = make_batch(OBSERVATION, DISCRETE, rows=32)
    (objective,) = algorithm.objectives()
    before = objective.loss(batch, None).value.item()
    for _ in range(50):
        updater.step([batch])
    assert objective.loss(batch, None).value.item() < 0.9 * before


def test_munchausen_target_without_bonus_and_temperature_equals_dqn(make_batch: Callable[..., TransitionBatch]) -> None:
    class Cold(munchausen_dqn()):  # type: ignore[misc]  # the class is only made here
        ALPHA, TAU = 0.0, 1e-6

    torch.manual_seed(0)
    cold = Cold(OBSERVATION, DISCRETE, MODEL, DQNConfig())
    batch = make_batch(OBSERVATION, DISCRETE, masked=True)
    torch.testing.assert_close(cold.target(batch), DQN.target(cold, batch))


@pytest.mark.parametrize(
    ("name", "action", "cls"),
    [("dqn", DISCRETE, DQN), ("sac", DISCRETE, DiscreteSAC), ("sac", BOX, SAC), ("td3", BOX, TD3), ("ddpg", BOX, DDPG)],
)
def test_names(name: str, action: ActionSpec, cls: type) -> None:
    assert type(make_algorithm(OBSERVATION, action, MODEL, off_policy_config_of(name)(algorithm=name))) is cls


def test_duplicate_names_raise() -> None:
    with pytest.raises(
        ValueError, match="algorithm 'dqn' exists already; choose a name other than dqn, ddpg, td3, sac"
    ):
        register_algorithm("dqn", ConservativeDQN)


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownAlgorithmError, match=r"algorithm 'dqnn' is not known; did you mean 'dqn'\? known: ddpg"):
        make_algorithm(OBSERVATION, DISCRETE, MODEL, OwnOffPolicyConfig(algorithm="dqnn"))


def test_factory_must_return_an_algorithm() -> None:
    register_algorithm("linear", lambda *_: nn.Linear(2, 2))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="algorithm 'linear' gave a Linear; it must give an instance of a subclass"):
        make_algorithm(OBSERVATION, DISCRETE, MODEL, OwnOffPolicyConfig(algorithm="linear"))
    # Another kind of algorithm than it is registered as, which the type checker sees, too.
    register_algorithm("function", lambda *_: PPO(OBSERVATION, DISCRETE, MODEL, OnPolicyConfig()))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"gave a PPO; .*OffPolicyAlgorithm; register it with is_on_policy=True"):
        make_algorithm(OBSERVATION, DISCRETE, MODEL, OwnOffPolicyConfig(algorithm="function"))


@pytest.mark.parametrize(
    ("name", "heads", "structure", "message"),
    [
        (
            "dqn",
            BOX.heads,
            "box",
            r"DQN rates every choice, but the action space is box of Box\(2,\); allowed: Discrete",
        ),
        ("td3", DISCRETE.heads, "discrete", "TD3 acts in real numbers, but the action space is discrete of 4 choices"),
        ("ddpg", DISCRETE.heads, "discrete", "DDPG acts in real numbers"),
        (
            "sac",
            (*DISCRETE.heads, *BOX.heads),
            "tuple",
            r"SAC acts in real numbers, but .* tuple of 4 choices, Box\(2,\);.* Use an on-policy algorithm for",
        ),
        (
            "sac",
            (BoxHead(low=(-math.inf,), high=(1.0,), shape=(1,)),),
            "box",
            r"SAC needs finite bounds, .*low=\(-inf,\)",
        ),
    ],
)
def test_unfit_actions_raise(name: str, heads: tuple[Head, ...], structure: str, message: str) -> None:
    action = ActionSpec(heads=heads, structure=structure)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        make_algorithm(OBSERVATION, action, MODEL, off_policy_config_of(name)(algorithm=name))


def test_a_name_that_differs_in_case_alone_is_taken() -> None:
    with pytest.raises(ValueError, match="algorithm 'DQN' exists already, as 'dqn'"):
        register_algorithm("DQN", DQN)


def test_an_algorithm_has_the_batches_and_rewards_of_its_run() -> None:
    register_algorithm("stubborn", lambda o, a, m, c: DQN(o, a, m, DQNConfig(double=True)))
    config = OwnOffPolicyConfig(algorithm="stubborn")
    assert make_algorithm(OBSERVATION, DISCRETE, MODEL, config).config == DQNConfig(double=True)
    with pytest.raises(ValueError, match="has batch_size=1024 in its config, but the run has 64"):
        make_algorithm(OBSERVATION, DISCRETE, MODEL, replace(config, batch_size=64))

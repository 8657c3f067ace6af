"""Compute settings by rule: the same on machines of one kind, and none that the user has set is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.learning.config import ComputeConfig
from rollmill.learning.measure import GRAPH_BYTES, activation_bytes
from rollmill.learning.settled import settled_fast_path
from rollmill.models.config import ModelConfig
from rollmill.models.device import has_bf16_units
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

CPU = torch.device("cpu")
VECTOR = EnvSpec(
    name="vector",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
PICTURES = replace(VECTOR, observation={"obs": ArraySpec(shape=(36, 36, 1), dtype="uint8")})


def ppo(spec: EnvSpec, **settings: object) -> PPO:
    config = OnPolicyConfig(**{"batch_size": 32_768, "minibatches": 2, **settings})
    return PPO(spec.observation, spec.action, ModelConfig(mlp_sizes=(8,)), config)


def test_without_images_large_parts_in_float32_are_chosen() -> None:
    path = settled_fast_path(ppo(VECTOR), VECTOR, ComputeConfig())
    assert (path.precision, path.micro_batch, path.channels_last, path.compile) == ("fp32", 4096, False, False)


def test_images_have_small_parts_on_a_cpu_and_the_precision_of_its_units() -> None:
    path = settled_fast_path(ppo(PICTURES), PICTURES, ComputeConfig())
    assert path.precision == ("bf16" if has_bf16_units(CPU) else "fp32")
    assert (path.micro_batch, path.channels_last, path.compile) == (128, True, False)


@pytest.mark.parametrize("spec", [VECTOR, PICTURES], ids=lambda spec: spec.name)
def test_a_part_is_at_most_a_minibatch(spec: EnvSpec) -> None:
    algorithm = ppo(spec, batch_size=96, minibatches=4)
    assert settled_fast_path(algorithm, spec, ComputeConfig()).micro_batch == 24


def test_what_the_user_has_set_is_kept() -> None:
    given = ComputeConfig(precision="fp32", micro_batch=7, channels_last=False, compile=True)
    path = settled_fast_path(ppo(PICTURES), PICTURES, given)
    assert (path.precision, path.micro_batch, path.channels_last, path.compile) == ("fp32", 7, False, True)
    assert path.graph_samples == 0


@pytest.mark.parametrize(("advantage", "needs_graph"), [("gae", False), ("vtrace", True)])
def test_whole_trajectories_have_the_graph_that_fits(advantage: str, needs_graph: bool) -> None:
    algorithm = ppo(VECTOR, advantage=advantage)
    assert algorithm.needs_trajectories == needs_graph
    path = settled_fast_path(algorithm, VECTOR, ComputeConfig())
    most = max(4096, GRAPH_BYTES["cpu"] // activation_bytes(algorithm.acting, VECTOR, CPU))
    assert path.graph_samples == (most if needs_graph else 0)
    assert settled_fast_path(algorithm, VECTOR, ComputeConfig(micro_batch=64)).graph_samples == 0

"""The learner's measurement of compute settings, on the real model."""

from __future__ import annotations

import pytest
import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.learning import measure
from rollmill.learning.config import ComputeConfig
from rollmill.learning.measure import choose_fast_path
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec

SPEC = EnvSpec(
    name="mixed",
    observation={
        "image": ArraySpec(shape=(3, 40, 40), dtype="uint8"),
        "vector": ArraySpec(shape=(3,), dtype="float32"),
        "flag": ArraySpec(shape=(2,), dtype="bool"),
    },
    action=ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete"),
)


@pytest.mark.parametrize(("core", "advantage"), [("none", "gae"), ("gru", "gae"), ("none", "vtrace")])
def test_measuring_leaves_the_model_unchanged(core: str, advantage: str) -> None:
    config = OnPolicyConfig(batch_size=128, advantage=advantage)
    model = ModelConfig(core=core, core_size=8)  # type: ignore[arg-type]
    algorithm = PPO(SPEC.observation, SPEC.action, model, config)
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    random = torch.random.get_rng_state()
    path = choose_fast_path(algorithm, SPEC, ComputeConfig(precision="fp32"))
    assert path.precision == "fp32"
    assert path.micro_batch <= 128
    # The activations of this small network fit into memory many times.
    assert (path.graph_samples > 128) == (core != "none" or advantage == "vtrace")
    assert path.report
    assert torch.equal(random, torch.random.get_rng_state())
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_configured_values_are_not_measured() -> None:
    config = OnPolicyConfig(batch_size=128, advantage="vtrace")
    compute = ComputeConfig(precision="bf16", micro_batch=32, channels_last=True)
    path = choose_fast_path(PPO(SPEC.observation, SPEC.action, ModelConfig(), config), SPEC, compute)
    assert (path.precision, path.micro_batch, path.channels_last, path.report) == ("bf16", 32, True, ())


def test_graph_size_is_limited_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OnPolicyConfig(batch_size=2048, advantage="vtrace")
    algorithm = PPO(SPEC.observation, SPEC.action, ModelConfig(), config)
    monkeypatch.setitem(measure.GRAPH_BYTES, "cpu", 2**22)
    path = choose_fast_path(algorithm, SPEC, ComputeConfig())
    # One sample keeps its image as float32 (19,200 bytes); its other activations take between half of that and ten
    # times as much.
    assert 2**22 // 192_000 < path.graph_samples < 2**22 // 28_800 or path.graph_samples == path.micro_batch
    assert measure.activation_bytes(algorithm.acting, SPEC, torch.device("cpu")) > 28_800

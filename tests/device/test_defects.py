"""What only a GPU shows: precision, layouts, placement and libraries, checked on a fake one."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from tests.device.fake_cuda import FakeCuda

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.api import make_config
from rollmill.inference.acting_weights import ExactWeights
from rollmill.learning.process_group import backend_for
from rollmill.models.config import ModelConfig
from rollmill.models.device import compute_repeatably
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.regimes.settling import settled_settings
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.regimes.starting import cores_per_learner
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights

SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
PICTURES = EnvSpec(
    name="test", observation={"obs": ArraySpec(shape=(84, 84, 3), dtype="uint8", low=0, high=255)}, action=SPEC.action
)


def recurrent(device: str) -> PPO:
    model = ModelConfig(mlp_sizes=(8,), core="gru", core_size=4, normalise_observations=True, normalise_returns=True)
    return PPO(SPEC.observation, SPEC.action, model, OnPolicyConfig()).to(device)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["", ""], ("gloo", False)),
        (["a", "b"], ("nccl", False)),
        (["a", "b", "a"], ("gloo", True)),
        (["a", ""], ("gloo", False)),
    ],
)
def test_ranks_that_share_a_gpu_exchange_gradients_through_gloo(devices: list[str], expected: tuple[str, bool]) -> None:
    assert backend_for(devices) == expected


def test_each_version_of_a_recurrent_policy_has_its_weights_in_one_block(gpu: FakeCuda) -> None:
    algorithm = recurrent("cuda")
    topology = slots.Topology(
        rollout_length=2,
        group_rows=1,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(3,),
        slots_per_group=3,
    )
    fields = slots.slot_fields(SPEC, rollout_length=2, state_size=algorithm.state_size)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(algorithm.acting))
    arena = Arena.create(layout)
    store = slots.SlotStore(arena, fields, topology, create=True)
    published = weights.WeightStore(arena, create=True)
    acting = ExactWeights(store, published, algorithm, is_lowered=False, first_iteration=0)
    for copied in acting._copies:
        core = copied.algorithm.acting.core
        assert core is not None
        assert len({p.untyped_storage().data_ptr() for p in core.parameters()}) == 1


@pytest.mark.parametrize(
    ("threads", "name", "expected"), [(1, "cuda", 2), (4, "cuda", 4), (1, "cpu", 1), (1, "auto", 2)]
)
def test_a_learner_on_a_gpu_gets_a_core_for_its_loader(threads: int, name: str, expected: int) -> None:
    config = make_config("gym/CartPole-v1", {"learner.threads": threads, "learner.device": name})
    assert cores_per_learner(config, Probed(SPEC, (NetworkSizes(0, 0, 0),), has_cuda=True)) == expected


def test_the_precision_of_a_policy_worker_on_a_gpu_follows_from_a_rule(gpu: FakeCuda) -> None:
    def never() -> str:
        raise AssertionError("the time of a few rows on a GPU is that of its launches")

    config = make_config("gym/Acrobot-v1", {"learner.device": "cpu"})
    assert settled_settings(config, PICTURES, 10**7, never)["inference.precision"] == "bf16"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {"learner.device": "cpu", "inference.device": "cpu"}),
        ({"regime": "lockstep", "learner.device": "cuda"}, {"inference.device": "cpu"}),
        ({"regime": "replay", "off_policy.algorithm": "dqn"}, {}),
    ],
)
def test_small_networks_learn_on_the_cpu(gpu: FakeCuda, overrides: dict[str, Any], expected: dict[str, str]) -> None:
    def devices(spec: EnvSpec, size: int) -> dict[str, object]:
        settled = settled_settings(make_config("gym/Acrobot-v1", overrides), spec, size, lambda: "fp32")
        return {key: value for key, value in settled.items() if key.endswith("device")}

    assert devices(SPEC, 10_000) == expected
    assert devices(PICTURES, 10_000) == devices(SPEC, 10**7) == {}


def test_lockstep_asks_libraries_for_the_same_results_each_time(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    compute_repeatably(torch.device("cpu"))
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    compute_repeatably(torch.device("cuda"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


def test_weights_are_packed_and_unpacked_with_one_copy_for_each_dtype(gpu: FakeCuda) -> None:
    module = recurrent("cuda").acting
    assert {t.dtype for t in module.state_dict().values()} == {torch.float32, torch.float64}
    flat = FlatState(module, alias=False)
    for move in (flat.pack, flat.unpack):
        gpu.counts.reset()
        move()
        assert gpu.counts.operations == {"aten::_foreach_copy_": 2, "aten::copy_": 1}

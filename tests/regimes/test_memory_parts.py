"""The estimate of a run's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.regimes import starting
from rollmill.regimes.memory_parts import is_on_host, memory_advice, of_local_ranks, private_parts
from rollmill.regimes.setup import NetworkSizes, Probed, RunSetup
from rollmill.runtime import cgroups
from rollmill.runtime.arena import MemoryPart, NotEnoughMemory
from rollmill.runtime.ranks import Ranks
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.slots import Topology


@pytest.mark.parametrize("algo", [None, "dqn"])
def test_all_ranks_on_a_machine_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str | None) -> None:
    from rollmill.envs.factory import probe

    changes: dict[str, object] = {"num_envs": 4} if algo else {"regime": "lockstep"}
    config = rollmill.make_config("gym/CartPole-v1", changes, algo=algo)
    probed = Probed(probe(config.env), (NetworkSizes(0, 1 << 20, 1 << 18),))

    def prepare(world_size: int, local_world_size: int) -> RunSetup:
        ranks = Ranks(world_size=world_size, local_world_size=local_world_size)
        return starting.prepare(config.resolved(world_size), probed, tmp_path, resume=False, ranks=ranks)

    one, both = prepare(2, 1).memory.parts, prepare(2, 2).memory.parts
    assert [part.nbytes for part in both] == [2 * part.nbytes for part in one]
    assert all(part.what.endswith(", of each of 2 ranks") for part in both)
    if algo == "dqn":  # The ranks share what one alone would keep and learn from.
        alone = {part.what.partition(" of ")[0]: part.nbytes for part in prepare(1, 1).memory.parts}
        assert sum(part.nbytes for part in both if "batches" in part.what) == alone["3 batches"]
    needed = sum(part.nbytes for part in both)
    monkeypatch.setattr(cgroups, "available_memory", lambda: needed - 1)
    prepare(2, 1)
    with pytest.raises(NotEnoughMemory, match=r", of each of 2 ranks"):
        prepare(2, 2)


PROBED = Probed(
    EnvSpec(
        name="any",
        observation={
            "obs": ArraySpec(shape=(3,), dtype="float32"),
            "picture": ArraySpec(shape=(10, 10), dtype="uint8"),
        },
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    (NetworkSizes(0, 5000, 1000),),
    largest_parameter=" (the largest is w)",
)
OBSERVATION = 3 * 4 + 10 * 10


def parts_of(
    settings: dict[str, Any], *, algo: str | None = None, probed: Probed = PROBED, ranks: Ranks | None = None
) -> dict[str, int]:
    """What needs memory -> bytes; two policy workers serve slots of which each group has three."""
    topology = Topology(
        rollout_length=4,
        group_rows=2,
        worker_of_group=(0, 0),
        policy_worker_of_group=(0, 1),
        slots_of_worker=(6,),
        slots_per_group=3,
        num_policy_workers=2,
    )
    on_cpu: dict[str, Any] = {"learner.device": "cpu", "inference.device": "cpu"}
    if algo is None:
        on_cpu["learner.micro_batch"] = 64
    config = rollmill.make_config("gym/CartPole-v1", {**on_cpu, **settings}, algo=algo)
    return {part.what: part.nbytes for part in private_parts(config, probed, topology, ranks or Ranks())}


LEARNER = "the 1,000 parameters of the learner's network (the largest is w), their gradients and the optimiser's state"
PUBLISHED = "the weights that the learner publishes"


def test_an_on_policy_run_needs_networks_moments_and_a_micro_batch() -> None:
    # Parameters, gradients and two moments of Adam; each policy worker has the versions that its slots may need.
    assert parts_of({}) == {
        LEARNER: 4 * 1000 * 4,
        PUBLISHED: 5000,
        "6 network(s) of the policy workers": 6 * 5000,
        "the observations of a micro-batch of 64 samples": 64 * OBSERVATION,
    }
    assert parts_of({"learner.optimiser": "rmsprop"})[LEARNER] == 3 * 1000 * 4
    assert not any("micro-batch" in what for what in parts_of({"learner.micro_batch": "auto"}))


def test_a_replay_needs_three_batches_of_its_samples() -> None:
    settings = {"replay.capacity": 1000, "learner.batch_size": 32}
    what = "3 batches of 32 samples of 2 observations each"
    assert parts_of(settings, algo="dqn")[what] == 3 * 32 * 2 * OBSERVATION
    policies = {**settings, "population.policies": 3, "policy.1.learner.batch_size": 8, "replay.min_size": 10}
    what = "3 batches of all policies of 72 samples of 2 observations each"
    assert parts_of(policies, algo="dqn")[what] == 3 * 72 * 2 * OBSERVATION
    sequences = {**settings, "model.core": "gru", "replay.sequence_length": 8, "replay.burn_in": 4}
    what = "3 batches of 32 samples of 9 observations each"
    assert parts_of(sequences, algo="dqn")[what] == 3 * 32 * 9 * OBSERVATION
    ranks = Ranks(world_size=4, local_world_size=2)
    what = "3 batches of 8 samples of 2 observations each"
    assert parts_of(settings, algo="dqn", ranks=ranks)[what] == 3 * 8 * 2 * OBSERVATION


def test_each_of_several_learners_has_parameters_gradients_and_batches() -> None:
    settings = {"replay.capacity": 1000, "learner.batch_size": 32, "learner.num_learners": 3}
    parts = parts_of(settings, algo="dqn")
    # Two moments and the parameters of the server, and the parameters and gradients of each learner.
    assert parts[LEARNER] == (2 + 1 + 2 * 3) * 1000 * 4
    assert parts["3 batches of 32 samples of 2 observations each"] == 3 * 3 * 32 * 2 * OBSERVATION


def test_what_is_on_a_gpu_needs_no_memory_of_the_host_but_for_what_is_published() -> None:
    on_gpu = {"learner.device": "cuda", "inference.device": "cuda:1"}
    assert parts_of(on_gpu).keys() == {PUBLISHED, "the observations of a micro-batch of 64 samples"}
    auto = {"learner.device": "auto", "inference.device": "auto"}
    assert parts_of(auto).keys() == parts_of({}).keys()
    assert parts_of(auto, probed=replace(PROBED, has_cuda=True)).keys() == parts_of(on_gpu).keys()
    assert [is_on_host(name, PROBED) for name in ("cpu", "auto", "cuda", "cuda:0")] == [True, True, False, False]
    assert not is_on_host("auto", replace(PROBED, has_cuda=True))
    assert is_on_host("cpu", replace(PROBED, has_cuda=True))


def test_memory_of_a_machine_is_that_of_each_of_its_ranks() -> None:
    parts = [MemoryPart("a network", 10), MemoryPart("a batch", 7)]
    assert of_local_ranks(parts, Ranks(world_size=4)) == tuple(parts)
    assert of_local_ranks(parts, Ranks(world_size=4, local_world_size=3)) == (
        MemoryPart("a network, of each of 3 ranks", 30),
        MemoryPart("a batch, of each of 3 ranks", 21),
    )


def test_advice_names_the_largest_entry_of_the_observation() -> None:
    assert memory_advice(PROBED, "buy more") == (
        "One observation takes 112 bytes ('picture' is uint8 of shape (10, 10)): make it smaller, for example with "
        "gymnasium.wrappers.ResizeObservation; use a smaller network (model.encoder, model.mlp_sizes); buy more."
    )

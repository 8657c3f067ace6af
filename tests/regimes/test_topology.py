"""What a topology refuses, and how decorrelation is spread over groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.rollout.driven_worker import context_of

import rollmill
from rollmill.regimes.asynchronous import plan_topology
from rollmill.regimes.setup import NetworkSizes, Probed, group_builder
from rollmill.regimes.starting import prepare
from rollmill.roles import ROLLOUT_WORKER
from rollmill.runtime.ledger import Ledger
from rollmill.runtime.ranks import Ranks
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.slots import Topology

PROBED = Probed(
    EnvSpec(
        name="x",
        observation={"obs": ArraySpec(shape=(2,), dtype="float32")},
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    (NetworkSizes(0, 64, 8),),
)


def plan(workers: int, groups_per_worker: int, policy_workers: int) -> Topology:
    settings = {
        "num_envs": workers * groups_per_worker * 2,
        "envs_per_group": 2,
        "rollout.num_workers": workers,
        "rollout.groups_per_worker": groups_per_worker,
        "inference.num_workers": policy_workers,
    }
    return plan_topology(rollmill.make_config("gym/CartPole-v1", settings).resolved(), PROBED)


def test_more_policy_workers_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"inference.num_workers=5 is more than the 4 groups"):
        plan(2, 2, 5)


@pytest.mark.parametrize("assignment", ["fixed", "random"])
def test_only_learners_of_several_policies_hold_slots_in_reserve(assignment: str) -> None:
    def planned(**settings: object) -> Topology:
        sizes = {"num_envs": 24, "envs_per_group": 2, "rollout.num_workers": 3, "learner.batch_size": 512}
        settings = {**sizes, "rollout_length": 32, "population.assignment": assignment, **settings}
        return plan_topology(rollmill.make_config("gym/CartPole-v1", settings).resolved(), PROBED)

    # 12 groups, whose slots have 64 samples: a batch takes 8 of them.
    drawn = 4 if assignment == "random" else 0
    several = planned(**{"population.policies": 4})
    assert all(0 <= slots - (12 + 64 + drawn) / 3 < 1 for slots in several.slots_of_worker)
    begin_with = [len(several.free_slots_of(worker)) for worker in range(3)]
    assert all(0 <= slots - (12 + 2 * 8) / 3 < 1 for slots in begin_with)
    assert not any(planned().reserved_of_worker)
    assert not any(planned(**{"population.policies": 4, "num_slots": 100}).reserved_of_worker)


@pytest.mark.parametrize(("regime", "algo"), [("lockstep", "ppo"), ("replay", "dqn")])
def test_decorrelation_is_spread_evenly_over_the_groups_of_all_ranks(tmp_path: Path, regime: str, algo: str) -> None:
    settings = {"num_envs": 8, "envs_per_group": 1, "rollout.num_workers": 2, "rollout.decorrelate_steps": 70}
    config = rollmill.make_config("gym/CartPole-v1", {"regime": regime, **settings}, algo=algo).resolved(2)
    steps = []
    for rank in (0, 1):
        setup = prepare(config, PROBED, tmp_path, resume=False, ranks=Ranks(rank=rank, world_size=2))
        builder = group_builder(
            context_of(Ledger.private(ROLLOUT_WORKER)), setup, np.zeros((1, 1)), np.zeros(1, np.bool_), 0
        )
        steps += [builder.random_steps(group) for group in range(setup.topology.num_groups)]
    assert steps == [0, 10, 20, 30, 40, 50, 60, 70]

"""Who gets which cores."""

from __future__ import annotations

import os

import pytest

from rollmill.runtime.affinity import Placement, PlacementConfig, plan, usable_cores, usable_cpus


def test_enough_cores_are_given_out_one_process_each() -> None:
    result = plan(
        num_rollout_workers=4,
        num_policy_workers=1,
        num_learners=1,
        threads_per_learner=2,
        config=PlacementConfig(),
        cpus=(2, 3, 5, 7, 8, 9, 11),
        cores=7,
    )
    assert result.learners == (Placement((2, 3), 0),)
    assert result.policy_workers == (Placement((5,), 2),)
    assert result.rollout_workers == tuple(Placement((cpu,), 10) for cpu in (7, 8, 9, 11))


@pytest.mark.parametrize(("num_cpus", "cores"), [(3, 3), (8, 2), (2, 1)])
def test_too_few_cores_or_a_quota_leave_the_scheduler_alone(num_cpus: int, cores: int) -> None:
    result = plan(
        num_rollout_workers=2,
        num_policy_workers=1,
        num_learners=1,
        config=PlacementConfig(),
        cpus=tuple(range(num_cpus)),
        cores=cores,
    )
    assert result.rollout_workers == (Placement(None, 10),) * 2
    assert result.policy_workers == (Placement(None, 2),)
    assert result.learners == (Placement(None, 0),)


@pytest.mark.parametrize("workers", [2, 4])
def test_two_cores_are_given_to_the_rollout_workers_and_shared_by_all_others(workers: int) -> None:
    result = plan(
        num_rollout_workers=workers,
        num_policy_workers=1,
        num_learners=1,
        config=PlacementConfig(pin_on_two_cores=True),
        cpus=(4, 9),
        cores=2,
    )
    assert [placement.cpus for placement in result.rollout_workers] == [(4,), (9,)] * (workers // 2)
    assert result.policy_workers == (Placement(None, 2),)
    assert result.learners == (Placement(None, 0),)


@pytest.mark.parametrize(
    ("workers", "cpus", "cores", "policies", "wanted"),
    [
        (1, 2, 2, 1, True),
        (3, 2, 2, 1, True),
        (2, 2, 2, 1, False),
        (2, 2, 1, 1, True),
        (4, 4, 4, 1, True),
        (2, 2, 2, 2, True),
    ],
)
def test_rollout_workers_that_cannot_share_two_cores_equally_or_should_not_are_not_pinned(
    workers: int, cpus: int, cores: int, policies: int, wanted: bool
) -> None:
    result = plan(
        num_rollout_workers=workers,
        num_policy_workers=1,
        num_learners=1,
        config=PlacementConfig(pin_on_two_cores=wanted),
        num_policies=policies,
        cpus=tuple(range(cpus)),
        cores=cores,
    )
    assert {placement.cpus for placement in result.rollout_workers} == {None}


def test_pinning_can_be_demanded_and_forbidden() -> None:
    def cpus_of(config: PlacementConfig, count: int) -> list[tuple[int, ...] | None]:
        result = plan(
            num_rollout_workers=3,
            num_policy_workers=1,
            num_learners=1,
            config=config,
            cpus=tuple(range(count)),
            cores=2,
        )
        return [p.cpus for p in (*result.learners, *result.policy_workers, *result.rollout_workers)]

    assert cpus_of(PlacementConfig(pin="on"), 2) == [(0,), (1,), (0,), (1,), (0,)]
    assert cpus_of(PlacementConfig(pin="rollout_workers"), 2) == [None, None, (0,), (1,), (0,)]
    assert cpus_of(PlacementConfig(pin="off"), 64) == [None] * 5


def test_this_machine() -> None:
    assert set(usable_cpus()) == os.sched_getaffinity(0)
    assert 1 <= usable_cores() <= len(usable_cpus())
    result = plan(num_rollout_workers=1, num_policy_workers=0, num_learners=0, config=PlacementConfig())
    assert len(result.rollout_workers) == 1


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"placement\.pin='maybe': choose one of 'auto', 'on'"):
        PlacementConfig(pin="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"placement\.learner_nice=-5: give an integer of 0 \(normal\) to 19"):
        PlacementConfig(learner_nice=-5)
    with pytest.raises(ValueError, match=r"placement\.rollout_worker_nice=20"):
        PlacementConfig(rollout_worker_nice=20)

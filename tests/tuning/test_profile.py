"""Costs of the stages: found again from what whole runs and the network alone say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rollmill.api import make_config
from rollmill.regimes.starting import probe
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.supervisor import Supervisor
from rollmill.tuning.curves import Curve
from rollmill.tuning.explain import curves_of
from rollmill.tuning.model import Allocation
from rollmill.tuning.network import NetworkTimes, by_amdahl, gain_of_learners, network_times
from rollmill.tuning.profile import Demand, demand_of, fit_costs, workload_of
from rollmill.tuning.settings import allocation_of
from rollmill.tuning.trials import trial


def _demand(allocation: Allocation, batch_groups: float) -> Demand:
    """As a machine with known costs would show it."""
    rows = allocation.envs_per_group
    return Demand(
        allocation=allocation,
        rows=rows,
        batch_groups=batch_groups,
        group_s=1e-4 + 3e-4 * rows,
        group_wait_s=2e-4 * rows,
        group_overhead_s=1e-4,
        batch_s=2e-4 + batch_groups * (3e-5 + 5e-5 * rows),
        sgd_step_s=0.02 * allocation.learner_cores / {1: 1.0, 2: 1.6}[allocation.learner_cores],
        steps_per_second=1000.0,
        actor_cores=1.0,
        learner_cores=1.0,
        sgd_steps_per_second=10.0,
    )


def test_costs_are_found_again_from_joint_runs() -> None:
    times = NetworkTimes(fixed_s=2e-4, row_s=5e-5, threads=Curve((1.0, 2.0), (1.0, 1.6)))
    runs = [
        _demand(Allocation(2, 1, 1, 64, 16), 1.0),
        _demand(Allocation(2, 1, 2, 64, 4), 6.0),
        _demand(Allocation(2, 1, 1, 16, 1), 3.0),
    ]
    for known in (runs[:1], runs):
        costs = fit_costs(known, times)
        for run in runs if len(known) > 1 else known:
            assert costs.env_s(run.rows) == pytest.approx(run.group_s, rel=0.1)
            assert costs.wait_s(run.rows) == pytest.approx(run.group_wait_s)
            assert costs.inference_s(run.batch_groups, run.rows) == pytest.approx(run.batch_s, rel=0.1)
        assert costs.sgd_step_s == pytest.approx(0.02)


def test_a_learner_that_hardly_got_a_core_is_not_taken_for_free() -> None:
    times = NetworkTimes(fixed_s=2e-4, row_s=5e-5, threads=Curve((1.0,), (1.0,)), sgd_step_s=0.03)
    allocation = Allocation(2, 1, 1, 64, 16)
    run = replace(_demand(allocation, 1.0), sgd_steps_per_second=0.5, sgd_step_s=0.0)
    costs = fit_costs([run], times)
    assert costs.sgd_step_s == 0.03
    workload = workload_of(make_config("gym/CartPole-v1").resolved(), None)
    assert curves_of(costs, workload, allocation, 2).learners(1.0) == pytest.approx(1 / 0.03)
    # One that is seen elsewhere is.
    assert fit_costs([run, _demand(allocation, 1.0)], times).sgd_step_s == pytest.approx(0.02)


def test_runs_without_an_sgd_step_say_what_one_takes_at_least() -> None:
    times = NetworkTimes(fixed_s=2e-4, row_s=5e-5, threads=Curve((1.0, 2.0), (1.0, 1.6)), sgd_step_s=0.03)
    run = replace(_demand(Allocation(2, 1, 1, 64, 16), 1.0), sgd_steps_per_second=0.0, sgd_step_s=0.0)
    assert fit_costs([run], times).sgd_step_s == 0.03, "an idle learner's"
    assert fit_costs([replace(run, sgd_step_s=2.0)], times).sgd_step_s == 2.0, "one that was still at it"
    assert fit_costs([run], times._replace(sgd_step_s=0.0)).sgd_step_s > 0
    seen = _demand(Allocation(2, 1, 1, 64, 4), 1.0)
    assert fit_costs([run, seen], times).sgd_step_s == pytest.approx(0.02)


@pytest.mark.filterwarnings("error")
def test_what_was_not_seen_to_take_time_says_nothing() -> None:
    times = NetworkTimes(fixed_s=2e-4, row_s=5e-5, threads=Curve((1.0,), (1.0,)))
    run = _demand(Allocation(2, 1, 1, 64, 16), 1.0)
    idle = replace(run, group_s=0.0, group_overhead_s=0.0, batch_s=0.0)
    for costs in (fit_costs([idle], times), fit_costs([idle, run], times)):
        assert all(math.isfinite(value) for name, value in vars(costs).items() if name != "learner_speedup")
    alone = times.fixed_s + times.row_s * 64
    assert fit_costs([idle], times).inference_s(1.0, 64) == pytest.approx(alone, rel=0.1), "the network's own"


@pytest.mark.slow
def test_several_learners_cost_what_all_of_them_do_for_the_steps_that_the_server_takes() -> None:
    small = {"learner.batch_size": 16, "replay.min_size": 200}
    config = make_config("gym/CartPole-v1", small, algo="dqn").resolved()
    with Supervisor() as supervisor:
        probed = probe(supervisor, config)
        times = network_times(supervisor, config, probed, (1,), (1, 2, 4))
    assert times.speedup().cores == (1.0, 2.0, 4.0)
    assert times.server_share > 0
    demands = []
    for learners in (1, 2):
        several = make_config("gym/CartPole-v1", {**small, "learner.num_learners": learners}, algo="dqn").resolved()
        with trial(several, probed) as run_for:
            turn = run_for(1.0)
        demands.append(demand_of(allocation_of(several), workload_of(several, probed), [turn], usable_cores()))
        roles = [account.role for account in turn.accounts.values()]
        assert roles.count("gradient learner") == (learners if learners > 1 else 0)
        # One SGD step for two agent steps, whichever learner computes the gradients.
        assert demands[-1].sgd_steps_per_second * 2 == pytest.approx(demands[-1].steps_per_second, rel=0.2)
    costs = fit_costs(demands, times)
    alone, both = (demand.sgd_step_s for demand in demands)
    assert costs.learner_speedup(2) == pytest.approx(max(1.0, 2 / max(1.0, both / alone, 2 * (both / alone - 1))))


def test_learners_gain_what_the_server_lets_through() -> None:
    assert gain_of_learners(1, 0.3) == 1
    assert gain_of_learners(2, 0.25) == pytest.approx(1.6)
    assert gain_of_learners(8, 0.25) == pytest.approx(4.0)
    times = NetworkTimes(2e-4, 5e-5, Curve((1.0,), (1.0,)), learners=(1, 2, 4), server_share=0.1)
    assert times.speedup()(4) == pytest.approx(4 / 1.1)
    # What two learners have shown is worth more than what was expected of them, and so of four.
    runs = [_demand(Allocation(2, 1, learners, 8, 2), 1.0) for learners in (1, 2)]
    costs = fit_costs(runs, times)
    assert costs.sgd_step_s == pytest.approx(0.02)
    assert costs.learner_speedup(2) == pytest.approx(1.6)
    assert costs.learner_speedup(4) == pytest.approx(3.2)
    # A server that is always busy.
    assert times.speedup(0.5)(4) == pytest.approx(2.0)


def test_threads_that_cannot_be_timed_follow_amdahls_law() -> None:
    nine_tenths = Curve((1.0, 2.0), (1.0, 1 / (0.1 + 0.9 / 2)))
    extended = by_amdahl(nine_tenths, (1, 2, 4, 32))
    assert extended.cores == (1.0, 2.0, 4.0, 32.0)
    assert extended(32) == pytest.approx(1 / (0.1 + 0.9 / 32))
    single = Curve((1.0,), (1.0,))
    assert by_amdahl(single, (1, 2, 4)) == single
    assert by_amdahl(Curve((1.0, 2.0), (1.0, 1.0)), (1, 2, 4))(4) == 1.0

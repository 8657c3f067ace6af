"""The ledger's report: shares, the bottleneck's rule, the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmill.reporting.ledger_report import (
    CLEAR_LEAD,
    Stage,
    bottleneck_sentence,
    format_ledger,
    phase_shares,
    share_metrics,
    waiting_sentence,
)
from rollmill.runtime.ledger import START, ProcessAccount

WAIT = "waiting for actions"


def account(name: str, role: str, cpu: float = 1.0, alive_since: float = 0.0, **phases: float) -> ProcessAccount:
    spent = {phase.replace("_", " "): seconds for phase, seconds in phases.items()}
    return ProcessAccount(
        name=name,
        role=role,
        pid=1,
        phases={**spent, START: 2.0} if spent else {START: 2.0},
        counters={"agent steps": 1234567.0},
        waiting=frozenset({WAIT}),
        alive_since=alive_since,
        current_phase=START,
        current_since=0.0,
        ended=False,
        cpu_seconds=cpu,
    )


ACCOUNTS = {
    "rollout worker 0": account("rollout worker 0", "rollout worker", simulating=6.0, waiting_for_actions=2.0),
    "rollout worker 1": account("rollout worker 1", "rollout worker", simulating=3.0, waiting_for_actions=1.0),
    "learner": account("learner", "learner", learning=1.0, waiting_for_actions=3.0),
    "probe": account("probe", "process"),
}


def test_a_role_that_nobody_waits_for_is_no_stage() -> None:
    evaluator = replace(account("evaluator", "evaluator", playing=100.0), is_stage=False)
    assert phase_shares({**ACCOUNTS, "evaluator": evaluator}) == phase_shares(ACCOUNTS)


def test_shares_pool_the_processes_of_a_role_and_leave_start_up_out() -> None:
    shares = phase_shares(ACCOUNTS)
    assert shares.keys() == {"rollout worker", "learner"}
    assert shares["rollout worker"].shares == pytest.approx({"simulating": 0.75, WAIT: 0.25})
    assert shares["learner"].busy == pytest.approx(0.25)
    assert share_metrics(shares)["share/learner/learning"] == pytest.approx(0.25)


def test_shares_since_an_earlier_snapshot_count_only_what_came_after() -> None:
    later = {**ACCOUNTS, "learner": account("learner", "learner", learning=2.0, waiting_for_actions=3.0)}
    assert phase_shares(later, ACCOUNTS)["learner"].shares == pytest.approx({"learning": 1.0, WAIT: 0.0})
    assert "rollout worker" not in phase_shares(later, ACCOUNTS)


def test_a_restarted_process_is_counted_from_its_start() -> None:
    restarted = {"learner": account("learner", "learner", alive_since=5.0, learning=1.0, waiting_for_actions=1.0)}
    assert phase_shares(restarted, ACCOUNTS)["learner"].busy == pytest.approx(0.5)


def busy(**roles: float) -> dict[str, Stage]:
    return {role.replace("_", " "): Stage({"work": b, WAIT: 1 - b}, frozenset({WAIT})) for role, b in roles.items()}


def test_the_busiest_stage_is_the_bottleneck_if_it_leads_clearly() -> None:
    found = bottleneck_sentence(busy(rollout_worker=0.9, policy_worker=0.3, learner=0.9 - CLEAR_LEAD - 0.01))
    assert found.startswith("Bottleneck: rollout worker")
    assert "rollout worker 90%, learner 79%, policy worker 30%" in found
    assert "simulation" in found


def test_stages_that_are_about_equally_busy_have_no_bottleneck() -> None:
    found = bottleneck_sentence(busy(rollout_worker=0.9, policy_worker=0.3, learner=0.9 - CLEAR_LEAD + 0.01))
    assert found.startswith("Bottleneck: none")
    assert "rollout workers and learners" in found


def test_a_role_of_the_users_own_is_named_without_advice() -> None:
    assert bottleneck_sentence(busy(judge=0.5)) == "Bottleneck: judge (busy: judge 50%)."


def test_nothing_measured_is_said_so() -> None:
    assert "yet" in bottleneck_sentence({})


def test_who_waits_for_what_in_one_line() -> None:
    assert waiting_sentence(busy(learner=0.25, policy_worker=0.999)) == (
        "learner 25% busy, waiting for actions 75%; policy worker 100% busy"
    )


def test_the_table_has_a_row_for_each_process_and_ends_with_the_verdict() -> None:
    report = format_ledger(ACCOUNTS)
    lines = report.splitlines()
    assert lines[0].split("  ")[0] == "rollout workers"
    row = next(line for line in lines if line.startswith("rollout worker 1"))
    assert row.split() == ["rollout", "worker", "1", "6.0", "1.0", "50.0%", "16.7%", "33.3%", "1,234,567"]
    assert all(len(line) == len(lines[0]) for line in lines[:4])
    assert "probe" not in report
    assert lines[-1].startswith("Bottleneck: rollout worker")


def test_phases_that_never_happened_are_left_out() -> None:
    only = {"learner": account("learner", "learner", learning=1.0, saving=0.0)}
    assert "saving" not in format_ledger(only)
    assert "learning" in format_ledger(only)

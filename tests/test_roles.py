"""Positions that processes write to in the ledger, and the names by which they are read."""

from __future__ import annotations

import pytest

from rollmill.roles import (
    EVALUATOR,
    GRADIENT_LEARNER,
    LEARNER,
    POLICY_WORKER,
    ROLLOUT_WORKER,
    EvaluatorPhase,
    InferenceCounter,
    InferencePhase,
    LearnerCounter,
    LearnerPhase,
    RolloutCounter,
    RolloutPhase,
)
from rollmill.runtime.ledger import Role

ROLES = (ROLLOUT_WORKER, POLICY_WORKER, LEARNER, GRADIENT_LEARNER, EVALUATOR)


def _positions(kind: type) -> list[int]:
    return sorted({value for name, value in vars(kind).items() if name.isupper()})


@pytest.mark.parametrize(
    ("phase", "role"),
    [
        (RolloutPhase, ROLLOUT_WORKER),
        (InferencePhase, POLICY_WORKER),
        (LearnerPhase, LEARNER),
        (LearnerPhase, GRADIENT_LEARNER),
        (EvaluatorPhase, EVALUATOR),
    ],
)
def test_each_phase_has_a_name(phase: type, role: Role) -> None:
    assert _positions(phase) == list(range(len(role.phases)))


@pytest.mark.parametrize(
    ("counter", "role"),
    [
        (RolloutCounter, ROLLOUT_WORKER),
        (InferenceCounter, POLICY_WORKER),
        (LearnerCounter, LEARNER),
        (LearnerCounter, GRADIENT_LEARNER),
    ],
)
def test_each_counter_has_a_name(counter: type, role: Role) -> None:
    assert _positions(counter) == list(range(len(role.counters)))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_names_are_unique_and_waiting_is_a_phase(role: Role) -> None:
    assert len(set(role.phases)) == len(role.phases)
    assert role.waiting <= set(role.phases)
    assert all(("waiting" in phase) == (phase in role.waiting) for phase in role.phases)


def test_roles_have_names_of_their_own() -> None:
    assert len({role.name for role in ROLES}) == len(ROLES)
    assert GRADIENT_LEARNER.counters[LearnerCounter.GRADIENTS] == "gradients"

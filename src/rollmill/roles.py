"""What each kind of process of a run accounts for in the ledger: its phases and its counters.

``ledger.enter(RolloutPhase.SIMULATING)`` and ``ledger.add(RolloutCounter.AGENT_STEPS, n)`` write; the main process
reads by name. The module must not import torch, because the main process and rollout workers import it.
"""

from __future__ import annotations

from dataclasses import replace

from rollmill.runtime.ledger import Role


class RolloutPhase:
    """Positions in ``ROLLOUT_WORKER.phases``."""

    BUILDING, SIMULATING, BOOKKEEPING, WAITING_FOR_ACTIONS, WAITING_FOR_SLOT, WAITING_FOR_LEARNER = range(6)


class RolloutCounter:
    """Positions in ``ROLLOUT_WORKER.counters``."""

    AGENT_STEPS, REBUILDS = range(2)


ROLLOUT_WORKER = Role(
    name="rollout worker",
    phases=(
        "building environments",
        "simulating",
        "bookkeeping",
        "waiting for actions",
        "waiting for a slot",
        "waiting for the learner",
    ),
    counters=("agent steps", "environment rebuilds"),
    waiting=frozenset({"waiting for actions", "waiting for a slot", "waiting for the learner"}),
)


class InferencePhase:
    """Positions in ``POLICY_WORKER.phases``."""

    WAITING, LOADING, GATHERING, FORWARD, SCATTERING = range(5)


class InferenceCounter:
    """Positions in ``POLICY_WORKER.counters``."""

    ROWS, BATCHES = range(2)


POLICY_WORKER = Role(
    name="policy worker",
    phases=("waiting for observations", "loading weights", "gathering", "forward", "scattering"),
    counters=("rows", "batches"),
    waiting=frozenset({"waiting for observations"}),
)


class LearnerPhase:
    """Positions in ``LEARNER.phases`` and ``GRADIENT_LEARNER.phases``."""

    MEASURING, WAITING, LEARNING, PUBLISHING, REPORTING, SAVING = range(6)


class LearnerCounter:
    """Positions in ``LEARNER.counters`` and ``GRADIENT_LEARNER.counters``."""

    SAMPLES, SGD_STEPS = range(2)
    GRADIENTS = SGD_STEPS


LEARNER = Role(
    name="learner",
    phases=("measuring the fast path", "waiting for batches", "learning", "publishing", "reporting", "saving"),
    counters=("samples", "SGD steps"),
    waiting=frozenset({"waiting for batches"}),
)
# One of several learners in replay: only the parameter server, which is the run's learner, takes SGD steps.
GRADIENT_LEARNER = replace(LEARNER, name="gradient learner", counters=("samples", "gradients"))


class EvaluatorPhase:
    """Positions in ``EVALUATOR.phases``."""

    WAITING, PLAYING = range(2)


EVALUATOR = Role(
    name="evaluator",
    phases=("waiting for networks", "playing"),
    waiting=frozenset({"waiting for networks"}),
    is_stage=False,
)

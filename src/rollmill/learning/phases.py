"""What a learner accounts for in the ledger.

Apart from the learner itself, because the main process reads the ledger and must not import what that needs.
"""

from __future__ import annotations

from dataclasses import replace

from rollmill.runtime.ledger import Role

ROLE = Role(
    name="learner",
    phases=("measuring the fast path", "waiting for batches", "learning", "publishing", "reporting", "saving"),
    counters=("samples", "SGD steps"),
    waiting=frozenset({"waiting for batches"}),
)
# One of several learners in replay: only the parameter server, which is the run's learner, takes SGD steps.
GRADIENT_ROLE = replace(ROLE, name="gradient learner", counters=("samples", "gradients"))
MEASURING, WAITING, LEARNING, PUBLISHING, REPORTING, SAVING = range(len(ROLE.phases))

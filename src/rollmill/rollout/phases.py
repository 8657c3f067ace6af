"""What a rollout worker accounts for in the ledger.

Apart from the rollout worker itself, because the main process reads the ledger and must not import what that needs.
"""

from __future__ import annotations

from rollmill.runtime.ledger import Role

ROLE = Role(
    name="rollout worker",
    phases=(
        "building environments",
        "simulating",
        "bookkeeping",
        "waiting for actions",
        "waiting for a slot",
        "waiting for the learner",
    ),
    counters=("agent steps", "failures mended"),
    waiting=frozenset({"waiting for actions", "waiting for a slot", "waiting for the learner"}),
)
BUILDING, SIMULATING, BOOKKEEPING, WAITING_FOR_ACTIONS, WAITING_FOR_SLOT, WAITING_FOR_LEARNER = range(len(ROLE.phases))

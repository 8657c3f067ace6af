"""What the process that evaluates during a run accounts for in the ledger.

Apart from the evaluation itself, because the main process reads the ledger and must not import what that needs.
"""

from __future__ import annotations

from rollmill.runtime.ledger import Role

ROLE = Role(
    name="evaluator",
    phases=("waiting for networks", "playing"),
    waiting=frozenset({"waiting for networks"}),
    is_stage=False,
)
WAITING, PLAYING = range(len(ROLE.phases))

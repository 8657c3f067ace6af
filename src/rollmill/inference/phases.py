"""What a policy worker accounts for in the ledger.

Apart from the policy worker itself, because the main process reads the ledger and must not import what that needs.
"""

from __future__ import annotations

from rollmill.runtime.ledger import Role

ROLE = Role(
    name="policy worker",
    phases=("waiting for observations", "loading weights", "gathering", "forward", "scattering"),
    counters=("rows", "batches"),
    waiting=frozenset({"waiting for observations"}),
)
WAITING, LOADING, GATHERING, FORWARD, SCATTERING = range(len(ROLE.phases))

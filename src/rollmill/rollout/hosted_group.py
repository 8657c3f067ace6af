"""A group of environments as its rollout worker sees it."""

from __future__ import annotations

from dataclasses import dataclass

from rollmill.envs.views import SavableGroup
from rollmill.storage.slots import NO_SLOT


@dataclass(slots=True, kw_only=True)
class HostedGroup:
    """A group's environments, and where it writes.

    Attributes:
        index: Which group, of those of this machine.
        environments: Its environments.
        iteration: How many slots the group has filled; in lockstep, the iteration that its slot belongs to.
        slot: Where it writes.
        step: t of the newest observation in the slot; T when the slot is full.
        previous_slot: The full slot before, while V(x_T) of it is missing; see ``PooledSlots``.
    """

    index: int
    environments: SavableGroup
    iteration: int = 0
    slot: int = NO_SLOT
    step: int = 0
    previous_slot: int = NO_SLOT

"""Numbers that say who plays a row, in ``policy_id`` of a slot: policies that learn, and their past selves."""

from __future__ import annotations

from typing import NamedTuple


class PlayerIds(NamedTuple):
    """0, 1, ... are the policies; the past selves of policy 0, those of policy 1, ... follow.

    Attributes:
        policies: Number of policies.
        places: Places of each policy's bank of past selves.
    """

    policies: int = 1
    places: int = 0

    def past(self, policy: int, place: int) -> int:
        """Return the id of the past self in this place of a policy's bank."""
        return self.policies + policy * self.places + place

    def is_past(self, player: int) -> bool:
        """Whether the player is a past self."""
        return player >= self.policies

    def place(self, player: int) -> tuple[int, int]:
        """Return the policy of a past self, and its place."""
        return divmod(player - self.policies, self.places)

"""Numbers that say who plays a row, in ``policy_id`` of a slot: policies that learn, their past selves, and guests."""

from __future__ import annotations

from typing import NamedTuple


class PlayerIds(NamedTuple):
    """0, 1, ... are the policies; the past selves of policy 0, those of policy 1, ... follow, and then the guests.

    Attributes:
        policies: Number of policies.
        places: Places of each policy's bank of past selves.
        guests: Number of players that do not learn and never did in this run.
    """

    policies: int = 1
    places: int = 0
    guests: int = 0

    def past(self, policy: int, place: int) -> int:
        """Return the id of the past self in this place of a policy's bank."""
        return self.policies + policy * self.places + place

    def is_past(self, player: int) -> bool:
        """Whether the player is a past self."""
        return self.policies <= player < self._first_guest

    def place(self, player: int) -> tuple[int, int]:
        """Return the policy of a past self, and its place."""
        return divmod(player - self.policies, self.places)

    def guest(self, index: int) -> int:
        """Return the id of a guest."""
        return self._first_guest + index

    def guest_index(self, player: int) -> int | None:
        """Return which guest a player is; None if it is none."""
        return player - self._first_guest if player >= self._first_guest else None

    @property
    def _first_guest(self) -> int:
        return self.policies * (1 + self.places)

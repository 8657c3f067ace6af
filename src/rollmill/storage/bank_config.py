"""How a policy meets its past selves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import UNIT, Checked, integer

Matchmaking = Literal["uniform", "latest", "pfsp"]


@dataclass(frozen=True, kw_only=True)
class BankConfig(Checked, section="population"):
    """The bank of past selves, which play against the policy that learns.

    Attributes:
        snapshots: Places of the bank; 0 is no bank: all agents are played by the policy that learns. One place is kept
            free for the next snapshot.
        snapshot_every: Agent steps between two snapshots. A snapshot takes the place of an older one, as soon as nobody
            plays against that.
        keep: Which snapshots stay when the bank is full: "recent" ones, or some that are "spread" over the whole run.
        past: Share of the matches in which one agent is played by a past self; the others are played by the policy that
            learns.
        matchmaking: Which past self: "uniform" takes any, "latest" the newest, "pfsp" prefers those against which the
            policy wins least: with probability proportional to (1 - win rate)^2 (prioritised fictitious self-play,
            Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z, "hard" weighting).
    """

    snapshots: int = setting(0, integer(0))
    snapshot_every: int = setting(50_000, integer(1), "(agent steps)")
    keep: Literal["recent", "spread"] = "recent"
    past: float = setting(0.2, UNIT)
    matchmaking: Matchmaking = "uniform"

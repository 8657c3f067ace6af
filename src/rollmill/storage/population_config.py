"""Which policies learn, who plays whom, and the bank of past selves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import NAME, UNIT, Checked, ConfigError, integer

RatingKind = Literal["elo", "openskill"]
POLICIES_FOLDER = "policies"
"""Holds a folder for each policy, if there are several."""

RANDOM_PLAYER = "random"
"""The player that chooses uniformly among the allowed actions."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig(Checked, section="population"):
    """The policies of a run, and their past selves.

    Attributes:
        policies: The policies that learn, each with a network, an optimiser and checkpoints of its own: their number,
            or their names ("attacker,defender"). ``policy.NAME.KEY`` gives one of them its own value of a setting
            ``model.*``, ``learner.*`` or ``off_policy.*`` of its network, its algorithm or its optimiser, and
            ``policy.NAME.agents`` the agents that it plays, as names or patterns ("adversary_*").
        pbt: Whether the policies are a population: those with the worst results go on from the best, and numbers such
            as the learning rate are mutated (settings ``pbt.*``).
        assignment: Which of the policies that may play an agent plays it: "random" draws one for every episode,
            "fixed" divides them evenly over environments and agents, for the whole run. "auto" is "random" for
            environments with several agents and "fixed" for others. Or a name given to ``register_assignment``.
        snapshots: Places of each policy's bank of past selves; 0 is no bank: all agents are played by the policies
            that learn. One place is kept free for the next snapshot, so a bank needs at least 2.
        snapshot_every: Agent steps of a policy between two of its snapshots. A snapshot takes the place of an older
            one, as soon as that one is in no match.
        snapshot_win_rate: A snapshot is taken only when the policy has got at least this share of the points in its
            matches with past selves since the last one, of which there must be 100; the first one is taken at once.
            None takes snapshots by agent steps alone.
        keep: Which snapshots stay when the bank is full: "recent" ones, or some that are "spread" over the whole run.
        past: Share of the matches in which one agent is played by a past self; the others are played by policies that
            learn.
        guests: Players that do not learn, as in a tournament: run directories, checkpoint files, names given to
            ``register_player`` and "random"; ``NAME=PLAYER`` gives one a name. ``policy.NAME.agents`` gives a guest
            agents of its own; otherwise it is an opponent like a past self.
        guest_share: Share of the matches in which one agent is played by a guest without agents of its own. With past
            selves it is the share of the matches without one.
        matchmaking: Which past self: "uniform" takes any, "latest" the newest, "pfsp" prefers those against which the
            run's policies win least: with probability proportional to (1 - win rate)^2 (prioritised fictitious
            self-play, Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z, "hard" weighting). "elo" prefers
            those of a similar rating: with p points expected in a match, in proportion to exp(-18 (p - 1/2)^2)
            (Jaderberg et al. 2019, https://doi.org/10.1126/science.aau6249). Or a name given to
            ``register_matchmaking``.
        rating: How players are rated: "elo", or "openskill" (Weng and Lin 2011), which is like TrueSkill, and for which
            the metric ``rating`` is its estimate minus three standard deviations (needs the package openskill).
    """

    policies: int | tuple[str, ...] = 1
    pbt: bool = False
    assignment: str = setting("auto", NAME)
    snapshots: int = setting(0, integer(0))
    snapshot_every: int = setting(50_000, integer(1), "(agent steps)")
    snapshot_win_rate: float | None = setting(None, UNIT, "for none")
    keep: Literal["recent", "spread"] = "recent"
    past: float = setting(0.2, UNIT)
    matchmaking: str = setting("uniform", NAME)
    rating: RatingKind = "elo"
    guests: tuple[str, ...] = ()
    guest_share: float = setting(0.2, UNIT)

    def __post_init__(self) -> None:
        """Check the number or the names of the policies, too."""
        super().__post_init__()
        self._check_policies()
        players = [*self.names, *(name for name, _ in self.named_guests)]
        for name in players:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"population: {name!r} is not a name for a policy or a guest, which is also that of a folder and "
                    "of settings: use letters, digits and _ (for a guest NAME=PLAYER)."
                )
        if len(set(players)) < len(players):
            raise ConfigError(f"population: the names {', '.join(players)} of policies and guests must differ.")

    def _check_policies(self) -> None:
        given = self.policies
        if isinstance(given, int) and not isinstance(given, bool):
            integer(1).check("population.policies", given, ", or names")
            return
        if not isinstance(given, tuple) or not given or len(set(given)) < len(given):
            raise ConfigError(f"population.policies={given!r}: give a number of at least 1, or different names.")

    @property
    def names(self) -> tuple[str, ...]:
        """The policies' names; "0", "1", ... where only their number is given."""
        return tuple(map(str, range(self.policies))) if isinstance(self.policies, int) else self.policies

    @property
    def named_guests(self) -> tuple[tuple[str, str], ...]:
        """Name and player of each guest; without a name, that is the last part of a path."""
        found = []
        for given in self.guests:
            name, player = split_guest(given)
            found.append((name, player) if name else (re.sub(r"\W", "_", Path(given).name), given))
        return tuple(found)

    def folders(self, run_dir: Path) -> list[Path]:
        """Return the folders of the policies' checkpoints and metrics; of a single policy that is the run's."""
        return [run_dir] if len(self.names) == 1 else [run_dir / POLICIES_FOLDER / name for name in self.names]


def split_guest(given: str) -> tuple[str, str]:
    """Name, empty where there is none, and player of a guest; a path may contain "=" itself."""
    name, equals, player = given.partition("=")
    is_named = equals and _NAME.fullmatch(name) and not Path(given).exists()
    return (name, player) if is_named else ("", given)

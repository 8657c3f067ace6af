"""Where each process's time went, and which stage of the run was the bottleneck.

The rule
========
A **stage** is all processes of one role: rollout workers, policy workers, learners. A process *waits* in the phases
that its role says are waiting for another process, and *works* in all others; starting up counts as neither. A stage's
**busy share** is its processes' working time over their working and waiting time.

Stages are connected by bounded buffers, so in the steady state the slowest one never waits and the others wait for it.
The bottleneck is therefore the busiest stage, if it leads the next one by at least 10 percentage points
(``CLEAR_LEAD``); otherwise there is none: the stages are balanced, and only a faster machine, or less work for all of
them, helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollmill.runtime.ledger import START, ProcessAccount, between

LEDGER_FILE = "ledger.txt"
CLEAR_LEAD = 0.10
_START_UP = (START, "starting")
_NOTICEABLE = 0.005  # shares that would not be shown as 0 %

_ADVICE = {
    "rollout worker": "simulation is the limit: more cores, more rollout workers, or a faster environment",
    "policy worker": "inference is the limit: more policy workers, larger inference batches, or a smaller network",
    "learner": "backpropagation is the limit: a faster precision or device, fewer SGD steps (a smaller "
    "learner.epochs; of a replay a larger replay.update_interval, or more learners), or a smaller network",
    "gradient learner": "backpropagation is the limit: more learners, a faster precision, or a smaller network",
}


@dataclass(frozen=True)
class Stage:
    """How the processes of one role spent their time.

    Attributes:
        shares: Phase -> share, 0..1, start-up left out; the shares sum to 1.
        waiting: Which of the phases are waiting for another process.
    """

    shares: Mapping[str, float]
    waiting: frozenset[str] = frozenset()

    @property
    def busy(self) -> float:
        """Share of the time that was not spent waiting, 0..1."""
        return sum(share for phase, share in self.shares.items() if phase not in self.waiting)

    @property
    def waits(self) -> dict[str, float]:
        """The noticeable waits: phase -> share, the longest first."""
        waits = [(p, s) for p, s in self.shares.items() if p in self.waiting and s >= _NOTICEABLE]
        return dict(sorted(waits, key=lambda wait: -wait[1]))


def phase_shares(
    accounts: Mapping[str, ProcessAccount], since: Mapping[str, ProcessAccount] | None = None
) -> dict[str, Stage]:
    """Role -> how its processes spent their time; roles without any time since their start-up are left out.

    So are roles that no other process waits for, such as the evaluator.

    Args:
        accounts: Process name -> account, a snapshot of the ledger.
        since: An earlier snapshot; only the time after it counts.
    """
    if since is not None:
        accounts = between(since, accounts)
    seconds: dict[str, dict[str, float]] = {}
    waiting: dict[str, frozenset[str]] = {}
    for account in accounts.values():
        if not account.is_stage:
            continue
        phases = seconds.setdefault(account.role, {})
        waiting[account.role] = waiting.get(account.role, frozenset()) | account.waiting
        for phase, spent in account.phases.items():
            if phase not in _START_UP:
                phases[phase] = phases.get(phase, 0.0) + spent
    result: dict[str, Stage] = {}
    for role, phases in seconds.items():
        whole = sum(phases.values())
        if whole > 0.0:
            result[role] = Stage({phase: spent / whole for phase, spent in phases.items()}, waiting[role])
    return result


def share_metrics(measured: Mapping[str, Stage]) -> dict[str, float]:
    """The stages as metrics: ``share/<role>/<phase>``, 0..1."""
    return {f"share/{role}/{phase}": s for role, stage in measured.items() for phase, s in stage.shares.items()}


def bottleneck_sentence(measured: Mapping[str, Stage]) -> str:
    """The stage that the others wait for, by the rule in the module's docstring, with its figures, for people."""
    busy = sorted(((role, stage.busy) for role, stage in measured.items()), key=lambda item: -item[1])
    if not busy:
        return "No stage has been measured yet."
    figures = ", ".join(f"{role} {share:.0%}" for role, share in busy)
    role, share = busy[0]
    if len(busy) > 1 and share - busy[1][1] < CLEAR_LEAD:
        close = " and ".join(f"{other}s" for other, s in busy if share - s < CLEAR_LEAD)
        return f"Bottleneck: none; {close} are about equally busy (busy: {figures})."
    advice = f"; {_ADVICE[role]}" if role in _ADVICE else ""
    return f"Bottleneck: {role} (busy: {figures}){advice}."


def waiting_sentence(measured: Mapping[str, Stage]) -> str:
    """Who waits for what, in one line: each role's busy share and its longest wait."""
    parts = []
    for role, stage in measured.items():
        wait = next((f", {phase} {share:.0%}" for phase, share in stage.waits.items()), "")
        parts.append(f"{role} {stage.busy:.0%} busy{wait}")
    return "; ".join(parts)


def format_ledger(accounts: Mapping[str, ProcessAccount]) -> str:
    """Text table: for each role its processes, their time, the share of each phase, and their counters.

    Left out are phases in which a role never was, and processes that did nothing but start. The last line names the
    bottleneck.
    """
    roles: dict[str, list[ProcessAccount]] = {}
    for account in accounts.values():
        if set(account.phases) - set(_START_UP):
            roles.setdefault(account.role, []).append(account)
    blocks = [_format_role(role, members) for role, members in roles.items()]
    return "\n\n".join([*blocks, bottleneck_sentence(phase_shares(accounts))])


def _format_role(role: str, members: Sequence[ProcessAccount]) -> str:
    phases = [p for p in members[0].phases if any(account.phases[p] > 0.0 for account in members)]
    counters = list(members[0].counters)
    rows = [[f"{role}s", "wall s", "CPU s", *phases, *counters]]
    for account in members:
        whole = account.wall_seconds
        shares = [f"{account.phases[phase] / whole:.1%}" if whole > 0 else "-" for phase in phases]
        counts = [f"{account.counters[counter]:,.0f}" for counter in counters]
        rows.append([account.name, f"{whole:.1f}", f"{account.cpu_seconds:.1f}", *shares, *counts])
    return _align(rows)


def _align(rows: Sequence[Sequence[str]]) -> str:
    """First column to the left, the others to the right, a rule below the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)

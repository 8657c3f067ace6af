"""The display of a campaign: a panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.campaigns.jobs import Record
from rollmill.reporting.console import DisplayConsole, silent_once_gone

_PLAIN_INTERVAL_S = 30.0
_LEAST_PARTS = 0.01  # of a run: of less, no speed can be told
_LONGEST_ERROR = 200  # characters of an error in a line


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A run that trains.

    Attributes:
        name: Its name.
        share: How much of it is done, 0..1.
        seconds: Since this session has started it.
        episode_return: Mean return of its last 100 episodes.
        steps_per_second: Agent steps a second.
    """

    name: str
    share: float
    seconds: float
    episode_return: float | None
    steps_per_second: float | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A campaign at one moment.

    Attributes:
        total: Number of runs, ended ones included.
        done: Runs that are complete.
        pruned: Runs that were ended early because they would not be the best.
        failed: Runs that have failed.
        before: Runs that had ended before this session, with the parts of those that it has resumed.
        elapsed_s: Seconds of this session.
        running: The runs that train now.
    """

    total: int
    done: int
    pruned: int
    failed: int
    before: float
    elapsed_s: float
    running: Sequence[RunProgress]

    @property
    def ended(self) -> int:
        """Runs that have ended."""
        return self.done + self.pruned + self.failed

    @property
    def share(self) -> float:
        """How much of all runs is done, 0..1; a run that has ended early counts as a whole one."""
        return min(1.0, (self.ended + sum(run.share for run in self.running)) / self.total) if self.total else 1.0

    @property
    def runs_per_hour(self) -> float | None:
        """Runs that this session completes in an hour, parts of runs included; None before a hundredth of one."""
        parts = self.ended - self.before + sum(run.share for run in self.running)
        return 3600.0 * parts / self.elapsed_s if parts >= _LEAST_PARTS and self.elapsed_s > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the rate of this session."""
        rate = self.runs_per_hour
        return None if rate is None else 3600.0 * self.total * (1.0 - self.share) / rate


class CampaignDisplay:
    """Shows a campaign's progress on standard error.

    Args:
        title: Of the panel.
        quiet: Whether to show nothing.
        console: Where to show it, instead of standard error.
        plain_interval_s: Seconds between two lines where the console is not a terminal.
    """

    def __init__(
        self,
        title: str,
        *,
        quiet: bool = False,
        console: Console | None = None,
        plain_interval_s: float = _PLAIN_INTERVAL_S,
    ) -> None:
        self._title = title
        self._console = console if console is not None else DisplayConsole(stderr=True, quiet=quiet)
        self._plain_interval_s = plain_interval_s
        self._live: Live | None = None
        self._shown_at: float | None = None
        self._newest: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            with silent_once_gone(self._console):
                self._live.stop()
            self._live = None

    def update(self, progress: Progress) -> None:
        """Show a new state; where there is no terminal, at intervals only."""
        self._newest = progress
        with silent_once_gone(self._console):
            if self._console.is_interactive:
                if self._live is None:
                    self._live = Live(console=self._console, auto_refresh=False)
                    self._live.start()
                self._live.update(self._panel(progress), refresh=True)
                return
            now = time.monotonic()
            if self._shown_at is None or now - self._shown_at >= self._plain_interval_s:
                self._shown_at = now
                self._print(format_line(progress))

    def ended(self, record: Record) -> None:
        """Show how a run has ended."""
        self.note(describe_end(record))

    def note(self, text: str) -> None:
        """Print a line above the panel."""
        with silent_once_gone(self._console):
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _panel(self, progress: Progress) -> RenderableType:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_row(
            ProgressBar(total=1.0, completed=progress.share),
            f"{progress.share:.1%}  {format_duration(progress.elapsed_s)}  ETA {format_duration(progress.eta_s)}",
        )
        runs = Table.grid(padding=(0, 2))
        for run in progress.running:
            runs.add_row(
                Text(run.name),
                f"{run.share:.0%}",
                f"return {_number(run.episode_return)}",
                f"{_number(run.steps_per_second)} steps/s",
                format_duration(run.seconds),
            )
        return Panel(
            Group(bar, Text(_counts(progress)), Text(), runs),
            title=Text(self._title),
            title_align="left",
            border_style="cyan",
        )


def format_line(progress: Progress) -> str:
    """One line: counts, rate, time left."""
    return (
        f"{_counts(progress)}  {progress.share:.1%}  {format_duration(progress.elapsed_s)}  "
        f"ETA {format_duration(progress.eta_s)}"
    )


def describe_end(record: Record) -> str:
    """One line on a run that has ended."""
    line = f"{record.job.name}: {record.status} after {format_duration(record.seconds)}"
    if not record.error:
        return line
    first = record.error.splitlines()[0]
    return f"{line}: {first[:_LONGEST_ERROR]}"


def format_duration(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _counts(progress: Progress) -> str:
    parts = [f"{progress.done} of {progress.total} runs done", f"{len(progress.running)} running"]
    parts += [f"{progress.pruned} pruned"] if progress.pruned else []
    parts += [f"{progress.failed} failed"]
    rate = progress.runs_per_hour
    return ", ".join(parts) + f"  {'-' if rate is None else f'{rate:.1f}'} runs/h"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if abs(value) < 10_000 else f"{value:,.0f}"

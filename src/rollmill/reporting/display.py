"""The live display of a run: a panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.reporting.console import DisplayConsole, silent_once_gone
from rollmill.reporting.ledger_report import bottleneck_sentence, waiting_sentence
from rollmill.reporting.metric_table import EVALUATION_GROUP, label
from rollmill.reporting.status import Status

_BAR_WIDTH = 24
# Policies below each other before a second column begins, and columns at most.
_ROWS = 10
_COLUMNS = 3


class Display:
    """Shows a run's progress; ``update`` may be called as often as one likes.

    Args:
        console: Where to; by default standard error, so that standard output stays free for results.
        plain_interval_s: Seconds between two lines where the console is not a terminal.
        live_interval_s: Seconds between two refreshes of the panel where it is one.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        *,
        console: Console | None = None,
        plain_interval_s: float = 10.0,
        live_interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console if console is not None else DisplayConsole(stderr=True)
        self._interval_s = live_interval_s if self.console.is_interactive else plain_interval_s
        self._clock = clock
        self._shown_at: float | None = None
        self._pending: Status | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Print text above the panel, or below all lines so far: what was chosen, a warning, the final report."""
        if not self.console.is_interactive and self._pending is not None:
            self._show(self._pending)
        with silent_once_gone(self.console):
            self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def update(self, status: Status) -> None:
        """Take a new status, and show it if the last one was shown long enough ago."""
        self._pending = status
        now = self._clock()
        if self._shown_at is None or now - self._shown_at >= self._interval_s:
            self._shown_at = now
            self._show(status)

    def close(self) -> None:
        """Show the last status, if it has not been shown, and leave it standing; calling it twice does nothing."""
        if self._pending is not None:
            self._show(self._pending)
        if self._live is not None:
            with silent_once_gone(self.console):
                self._live.stop()
            self._live = None

    def _show(self, status: Status) -> None:
        self._pending = None
        if self.console.quiet:
            return
        with silent_once_gone(self.console):
            if not self.console.is_interactive:
                self.console.print(format_line(status), markup=False, highlight=False, emoji=False, soft_wrap=True)
                return
            if self._live is None:
                # No refresh thread: the panel changes only when there is something new.
                live = Live(console=self.console, auto_refresh=False)
                live.start()
                self._live = live  # Not before: what could not start cannot be stopped.
            self._live.update(_panel(status), refresh=True)


def format_line(status: Status) -> str:
    """One line: progress, speed, return, lag, and who waits for whom."""
    parts = [
        _extent(status),
        f"{_speed(status.frames_per_second)} {label('frames_per_second')}",
        f"ETA {_duration(status.eta_s)}",
        f"return {_number(status.episode_return)}",
        f"length {_number(status.episode_length)}",
        *([] if status.score is None else [f"score {status.score:.3f}"]),
        *([] if status.evaluation_return is None else [f"{EVALUATION_GROUP} {_number(status.evaluation_return)}"]),
        f"lag {_lag(status)}",
    ]
    if status.shares:
        parts.append(waiting_sentence(status.shares))
    return " | ".join(parts)


def _extent(status: Status) -> str:
    """How much is done, of the limit that will end the run."""
    time, steps = _duration(status.time_s), f"{status.agent_steps:,}"
    if status.ends_at_s is not None and status.progress > status.agent_steps / status.total_steps:
        return f"{time} of {_duration(status.ends_at_s)}  {steps} steps ({status.progress:.0%})"
    return f"{time}  {steps} of {status.total_steps:,} steps ({status.progress:.0%})"


def _panel(status: Status) -> RenderableType:
    progress = Table.grid(padding=(0, 1), expand=True)
    progress.add_column(ratio=1)
    progress.add_column(justify="right")
    progress.add_row(
        ProgressBar(total=1.0, completed=status.progress),
        f"{status.progress:.1%}  {_duration(status.time_s)}  ETA {_duration(status.eta_s)}",
    )
    figures = Table.grid(padding=(0, 2), expand=True)
    for _ in range(3):
        figures.add_column(style="dim")
        figures.add_column(justify="right")
    figures.add_row(
        label("frames_per_second"), _big(_speed(status.frames_per_second)),
        label("episode_return"), _big(_number(status.episode_return)),
        label("policy_lag_mean"), _big(_lag(status)),
    )  # fmt: skip
    figures.add_row(
        label("steps_per_second"), _speed(status.steps_per_second),
        label("episode_length"), _number(status.episode_length),
        label("policy_lag_expected"), _number(status.policy_lag_expected),
    )  # fmt: skip
    figures.add_row(
        label("agent_steps"), f"{status.agent_steps:,}",
        label("episodes"), f"{status.episodes:,}",
        label("policy_version"), f"{status.policy_version:,}",
    )  # fmt: skip
    figures.add_row(
        label("frames"), f"{status.frames:,}",
        label("batches"), f"{status.batches:,}",
        label("sgd_steps"), f"{status.sgd_steps:,}",
    )  # fmt: skip
    figures.add_row(
        label("learning_rate"), "-" if status.learning_rate is None else f"{status.learning_rate:.2e}",
        EVALUATION_GROUP, _number(status.evaluation_return),
    )  # fmt: skip
    parts: list[RenderableType] = [progress, Text(), figures]
    if status.policies:
        parts += [Text(), _policies(status)]
    if status.tasks:
        parts += [Text(), _tasks(status)]
    if status.shares:
        parts += [Text(), _stages(status), Text(bottleneck_sentence(status.shares), style="dim")]
    return Panel(Group(*parts), title=Text(f"rollmill {status.name}"), title_align="left", border_style="cyan")


def _policies(status: Status) -> Table:
    """Return one entry for each policy."""
    entries: list[list[RenderableType]] = [
        [
            Text(name),
            _number(policy.rating),
            _big(_number(policy.episode_return)),
            _number(policy.lag),
            _speed(policy.steps_per_second),
        ]
        for name, policy in status.policies.items()
    ]
    return _short_table(("policy", "rating", "return", "lag", "steps/s"), entries)


def _tasks(status: Status) -> Table:
    """Return one entry for each task."""
    entries: list[list[RenderableType]] = [
        [
            Text(name.rpartition("/")[2]),
            _big(_number(task.episode_return)),
            "-" if task.score is None else f"{task.score:.2f}",
            "-" if task.samples is None else f"{task.samples:.0%}",
        ]
        for name, task in status.tasks.items()
    ]
    return _short_table(("task", "return", "score", "samples"), entries)


def _short_table(titles: Sequence[str], entries: Sequence[Sequence[RenderableType]]) -> Table:
    """Return a table of entries, in as many columns side by side as keep it short; names are on the left."""
    rows = max(_ROWS, -(-len(entries) // _COLUMNS))
    columns = -(-len(entries) // rows)
    table = Table.grid(padding=(0, 1), expand=True)
    for _ in range(columns):
        for index, _title in enumerate(titles):
            table.add_column(justify="right" if index else "left", no_wrap=True)
    table.add_row(*[Text(title, style="dim") for _ in range(columns) for title in titles])
    for row in range(min(rows, len(entries))):
        table.add_row(*[cell for entry in entries[row::rows] for cell in entry])
    return table


def _stages(status: Status) -> Table:
    """One row for each role: how busy it is, and what it waits for."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for role, stage in status.shares.items():
        full = round(_BAR_WIDTH * stage.busy)
        bar = Text("█" * full, style="green") + Text("░" * (_BAR_WIDTH - full), style="yellow")
        waits = ", ".join(f"{phase} {share:.0%}" for phase, share in stage.waits.items())
        table.add_row(Text(role), bar, f"{stage.busy:.0%} busy", Text(waits))
    return table


def _big(text: str) -> Text:
    return Text(text, style="bold")


def _number(value: float | None) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,.1f}" if abs(value) < 10_000 else f"{value:,.0f}"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _lag(status: Status) -> str:
    if status.policy_lag_mean is None:
        return "-"
    most = "-" if status.policy_lag_max is None else f"{status.policy_lag_max:.0f}"
    return f"{status.policy_lag_mean:.1f} (max {most})"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

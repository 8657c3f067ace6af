"""Populations in the report: who continued from whom, and the numbers of each policy over time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.comparing.figures import draw_lineage
from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import table
from rollmill.pbt.history import PbtEvent, read_history


@dataclass(frozen=True)
class Population:
    """A run with population-based training.

    Attributes:
        run: The run.
        events: Its history.
    """

    run: ComparedRun
    events: Sequence[PbtEvent]

    @property
    def last(self) -> dict[str, PbtEvent]:
        """Policy -> its last event."""
        return {event.policy: event for event in self.events}


def populations(comparison: Comparison) -> list[Population]:
    """Return the runs that have a history of population-based training, in their order."""
    found = [Population(run, read_history(run.path)) for run in comparison.runs]
    return [population for population in found if population.events]


def draw_population(population: Population, path: Path) -> Path:
    """Draw replacements, objectives and numbers over the agent steps of each policy."""
    title = f"{population.run.env}: {population.run.path.name}"
    return draw_lineage(population.events, path, title=title)


def lineage_section(population: Population) -> str:
    """Return heading, table of the last numbers and note of a run."""
    last = population.last
    numbers = list(dict.fromkeys(name for event in last.values() for name in event.numbers))
    rows = [
        [
            name,
            _score(event),
            str(event.generation),
            *(f"{event.numbers[number]:.4g}" if number in event.numbers else "-" for number in numbers),
        ]
        for name, event in last.items()
    ]
    return (
        f"<h2>Population-based training of {html.escape(str(population.run.path))}</h2>"
        + table(["policy", "objective", "replaced", *numbers], rows)
        + '<p class="note">Objective when the policy was last compared, how often it continued from another one, and '
        "its numbers at the end. An arrow in the picture leads from a policy to the one that continues from it.</p>"
    )


def figures_of(population: Population) -> dict[str, Any]:
    """Return the numbers for ``report.json``."""
    return {
        "directory": str(population.run.path),
        "events": len(population.events),
        "replacements": sum(event.source is not None for event in population.events),
        "numbers": {name: dict(event.numbers) for name, event in population.last.items()},
    }


def _score(event: PbtEvent) -> str:
    own = event.scores.get(event.policy)
    return "-" if own is None else f"{own:.4g}"

"""What has happened in population-based training: a file with a line for each event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rollmill.pbt.config import PbtConfig

HISTORY_FILE = "pbt.jsonl"

EventKind = Literal["start", "kept", "mutated", "replaced"]


@dataclass(frozen=True, kw_only=True)
class PbtEvent:
    """An event of one policy.

    Attributes:
        policy: The policy's name.
        agent_steps: Agent steps of the policy.
        kind: "start": its first numbers; "kept": it is one of the best and goes on unchanged; "mutated": it goes on
            with other numbers; "replaced": it goes on from another policy, with other numbers.
        source: Name of the policy that it goes on from; None if it keeps its weights.
        generation: How often it has been replaced, this event included.
        scores: Name -> objective of all policies that took part.
        numbers: Name -> value of the policy's numbers from now on.
    """

    policy: str
    agent_steps: int
    kind: EventKind
    source: str | None
    generation: int
    scores: Mapping[str, float]
    numbers: Mapping[str, float]

    def describe(self) -> str:
        """Describe it in one line."""
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in self.numbers.items())
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        what = f"goes on from policy {self.source}" if self.source is not None else self.kind
        return f"pbt: policy {self.policy} at {self.agent_steps:,} steps: {what} ({scores}); {numbers}"


def append_event(run_dir: Path, event: PbtEvent) -> None:
    """Add a line to the history of a run."""
    with (run_dir / HISTORY_FILE).open("a") as file:
        file.write(json.dumps(asdict(event)) + "\n")


def read_history(run_dir: Path) -> list[PbtEvent]:
    """Return the events of a run in their order; none if it has no history. Lines that are no events are left out."""
    path = run_dir / HISTORY_FILE
    events = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            event = PbtEvent(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if _is_sound(event):
            events.append(event)
    return events


def _is_sound(event: PbtEvent) -> bool:
    """Whether the fields that were read have their types."""
    names = (event.policy, event.kind, event.policy if event.source is None else event.source)
    counts = (event.agent_steps, event.generation)
    return (
        all(isinstance(name, str) for name in names)
        and all(isinstance(count, int) for count in counts)
        and all(
            isinstance(values, dict) and all(isinstance(value, int | float) for value in values.values())
            for values in (event.scores, event.numbers)
        )
    )


def without_effect(run_dir: Path, config: PbtConfig) -> list[str]:
    """Return a warning if population-based training has decided nothing in a run; empty if it has.

    Args:
        run_dir: The run's directory.
        config: The settings.
    """
    compared = [event for event in read_history(run_dir) if event.kind != "start"]
    if not compared:
        return [
            f"population-based training has compared no policies: none has made pbt.every={config.every:,} agent steps "
            f"after pbt.start, and ended the episodes or matches of pbt.window={config.window}, while another one had "
            "ended them, too; train for longer, or give smaller ones"
        ]
    if all(len(set(event.scores.values())) < 2 for event in compared):
        return [
            f"in all comparisons of population-based training the policies were equal (pbt.objective="
            f"{config.objective}), so that none was replaced, and their numbers changed at random; choose another "
            "pbt.objective ('return' where agents share their rewards)"
        ]
    return []


def events_until(run_dir: Path, policy: str, agent_steps: int) -> int:
    """Return the number of events that a policy had until it had made so many agent steps."""
    return sum(event.policy == policy and event.agent_steps <= agent_steps for event in read_history(run_dir))


def cut_history(run_dir: Path, events: Mapping[str, int]) -> None:
    """Remove events that a resumed run will repeat.

    Args:
        run_dir: The run's directory.
        events: Name -> number of the policy's events that its checkpoint has.
    """
    path, left = run_dir / HISTORY_FILE, dict(events)
    if not path.is_file():
        return
    kept = []
    for event in read_history(run_dir):
        if left.get(event.policy, 0) > 0:
            left[event.policy] -= 1
            kept.append(json.dumps(asdict(event)) + "\n")
    aside = path.with_name(f"{HISTORY_FILE}.new")
    aside.write_text("".join(kept))
    aside.replace(path)

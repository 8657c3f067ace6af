"""What a tracker is: the interface that every service, and a user's own, implements.

A tracker runs in a thread of its own in the main process (:mod:`rollmill.tracking.trackers`), which makes every call,
one after another. So a call may wait for a network, and may raise: the run then continues without the tracker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from rollmill.tracking.config import TrackingConfig

FileKind = Literal["video", "checkpoint"]

# What the run's rows have of each policy, at the run's agent steps.
_IN_ROWS_OF_RUN = frozenset({"agent_steps", "episode_return", "rating"})


class TrackedPolicy(NamedTuple):
    """One policy of several.

    Attributes:
        directory: Its directory.
        resume_at_steps: As of :class:`TrackedRun`.
    """

    directory: Path
    resume_at_steps: int | None


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is started with.

    Attributes:
        directory: The run's directory.
        name: The run's name.
        config: Its settings by dotted key, without logins in addresses.
        settings: Project, group, tags and so on.
        is_resumed: Whether the run resumes.
        resume_id: The :attr:`Tracker.id` of the run that is resumed, to be continued; None for a new one.
        resume_at_steps: Agent steps of the checkpoint that the run resumes from: what was logged of later steps is
            logged again. None if the run does not resume.
        policies: Name -> policy, where there are several.
    """

    directory: Path
    name: str
    config: Mapping[str, object]
    settings: TrackingConfig
    is_resumed: bool = False
    resume_id: str | None = None
    resume_at_steps: int | None = None
    policies: Mapping[str, TrackedPolicy] = field(default_factory=dict)


class Tracker(Protocol):
    """A run at a service.

    Attributes:
        id: The service's id of the run, with which a resumed run continues it; None if it needs none.
        place: Where to look at the run, for a note: an address or a folder; empty for no note.
    """

    id: str | None
    place: str

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        """Take a row of metrics, or the figures of an evaluation.

        Args:
            numbers: Name (docs/metrics.md) -> finite number.
            agent_steps: The agent steps that they belong to. Those of an evaluation may be before the last row's.
            policy: The policy, of several, that they are of; None for the run.
        """

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        """Take a file.

        Args:
            path: The file; it may be replaced after the call.
            kind: "video" (mp4) of an evaluation's episode, or "checkpoint".
            name: What it is: "evaluation", "final" or "best".
            agent_steps: The agent steps of the network.
            policy: As for :meth:`log`.
        """

    def finish(self, ended_by: str) -> None:
        """Send the remaining data, and end the run at the service.

        Args:
            ended_by: As :attr:`rollmill.Run.ended_by` has it, or "failure".
        """


TrackerFactory = Callable[[TrackedRun], Tracker]


def under_policy(numbers: Mapping[str, float], policy: str | None) -> Mapping[str, float]:
    """Numbers under their policy's name, ``policy/NAME/...``, for services that have one axis of names for a run.

    Without those that the run's own rows have of each policy.
    """
    if policy is None:
        return numbers
    return {f"policy/{policy}/{name}": number for name, number in numbers.items() if name not in _IN_ROWS_OF_RUN}


def file_name(name: str, policy: str | None) -> str:
    """The name of a file among those of all policies."""
    return name if policy is None else f"{policy}-{name}"


def artifact_name(run: str, name: str, policy: str | None) -> str:
    """The name of a file among those of all runs, in the characters that Weights & Biases and Trackio allow."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run}-{file_name(name, policy)}")

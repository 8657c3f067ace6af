"""A process that is started to report something about itself."""

from __future__ import annotations

from collections.abc import Callable

from rollmill.runtime.events import Event, Exited, Failed, Message
from rollmill.runtime.supervisor import Supervisor


def first_report(supervisor: Supervisor, target: Callable[..., object], **options: object) -> object:
    """What a new process of that target sends first."""
    handle = supervisor.start("reporter", target, **options)
    events: list[Event] = []
    while Exited(handle) not in events:
        events += supervisor.poll(30)
        assert not any(isinstance(event, Failed) for event in events), events
    return next(event.content for event in events if isinstance(event, Message))

"""A line after each of several measurements."""

from __future__ import annotations

import time

from rollmill.runtime.standard_error import say


def say_measured(done: int, total: int, what: str, steps_per_second: float, *, began: float) -> None:
    """Print one measurement, and about how long the others take, to standard error.

    Args:
        done: Measurements so far.
        total: All measurements.
        what: The one that has just ended.
        steps_per_second: Its agent steps a second.
        began: ``time.monotonic()`` when the first one began.
    """
    left = (time.monotonic() - began) / done * (total - done)
    say(f"{done} of {total}: {what}, {steps_per_second:,.0f} agent steps/s; about {left / 60:.0f} min left")

"""What all peers share: when to measure, and how to report it. Runs in each peer's own environment."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version


class Window:
    """Measures agent steps a second between two updates, after a warm-up that begins with the first update.

    Counting begins and ends *at* an update, so a system whose counter moves once in a batch is measured over whole
    batches.

    Args:
        seconds: Length of the measurement, at least.
        warm_up_seconds: Left out before it.
    """

    def __init__(self, seconds: float, warm_up_seconds: float) -> None:
        self._seconds = seconds
        self._warm_up = warm_up_seconds
        self._started: float | None = None
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._cpu: list[float] = []

    def update(self, steps: int, now: float | None = None) -> None:
        """Tells that ``steps`` agent steps in all have been learned from (or, in synchronous systems, will be next)."""
        if self.is_full or (self._last is not None and steps == self._last[1]):
            return
        now = time.perf_counter() if now is None else now
        self._started = now if self._started is None else self._started
        if now < self._started + self._warm_up:
            return
        if self._first is None:
            self._first = (now, steps)
        self._last = (now, steps)
        self._cpu[1:] = [time.process_time()]

    @property
    def is_full(self) -> bool:
        """Whether the measurement has lasted long enough."""
        return self._first is not None and self._last is not None and self._last[0] - self._first[0] >= self._seconds

    @property
    def steps_per_second(self) -> float:
        """Agent steps a second.

        Raises:
            RuntimeError: There were fewer than two updates after the warm-up.
        """
        if self._first is None or self._last is None or self._first == self._last:
            raise RuntimeError("fewer than two updates after the warm-up: measure for longer (--seconds)")
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    @property
    def steps_per_cpu_second(self) -> float:
        """Agent steps a second that this process, with all its threads, had a core; steadier on a machine that is busy.

        Raises:
            RuntimeError: There were fewer than two updates after the warm-up.
        """
        rate = self.steps_per_second
        assert self._first is not None
        assert self._last is not None
        return rate * (self._last[0] - self._first[0]) / (self._cpu[-1] - self._cpu[0])


def make_parser(description: str, envs: tuple[str, ...]) -> argparse.ArgumentParser:
    """The arguments that every peer takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--env", choices=envs, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds left out before it")
    return parser


def report(
    peer: str,
    env: str,
    steps_per_second: float,
    *,
    frameskip: int,
    precision: str,
    config: dict[str, object],
    packages: tuple[str, ...],
    **more: float,
) -> None:
    """Prints the last line of a peer: its result as JSON, ``more`` and the packages' versions included.

    The first of ``packages`` is the peer itself, or what does most of its work.
    """
    result = {
        "peer": peer,
        "env": env,
        "steps_per_second": steps_per_second,
        "frames_per_second": steps_per_second * frameskip,
        "precision": precision,
        "config": config,
        "versions": {name: version(name) for name in packages},
        **more,
    }
    print(json.dumps(result), flush=True)

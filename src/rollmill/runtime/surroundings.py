"""What a process shares with its parent, although it is forked from the fork server.

The fork server keeps the environment, the output and the limits that the program had when it was started. Those of the
moment in which a process is started go with it and are entered before anything else is, the user's script included.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollmill.runtime.channel import SentDescriptor
from rollmill.runtime.fork_server import show_tokens
from rollmill.runtime.sweep import VARIABLE

_OUTPUTS = (1, 2)
_LIMITS = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))


class Surroundings:
    """This process's, with further environment variables. Loading its pickle enters them.

    The working directory and ``sys.path`` travel with multiprocessing's own data.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._sent = _Sent(
            environment={**os.environ, **variables},
            outputs={number: SentDescriptor(number) for number in _OUTPUTS if _is_open(number)},
            cpus=frozenset(os.sched_getaffinity(0)),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            umask=_umask(),
            limits={limit: resource.getrlimit(limit) for limit in _LIMITS},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _enter, (self._sent,)


class _Sent(NamedTuple):
    environment: dict[str, str]
    outputs: dict[int, SentDescriptor]
    cpus: frozenset[int]
    niceness: int
    umask: int
    limits: dict[int, tuple[int, int]]


def _enter(sent: _Sent) -> None:
    os.environ.clear()
    os.environ.update(sent.environment)
    show_tokens(sent.environment.get(VARIABLE, ""))
    time.tzset()
    for number, descriptor in sent.outputs.items():
        os.dup2(descriptor.number, number)
        os.close(descriptor.number)
    if frozenset(os.sched_getaffinity(0)) != sent.cpus:
        os.sched_setaffinity(0, sent.cpus)
    if (more := sent.niceness - os.getpriority(os.PRIO_PROCESS, 0)) > 0:
        os.nice(more)
    os.umask(sent.umask)
    for limit, value in sent.limits.items():
        if resource.getrlimit(limit) != value:
            with contextlib.suppress(ValueError, OSError):  # Raised by the program meanwhile, as root may.
                resource.setrlimit(limit, value)
    importlib.invalidate_caches()
    # `random` reseeds itself after a fork.
    np.random.seed()  # noqa: NPY002  what the user's code may draw from
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
        # It has read the variable when it was imported, in the fork server.
        threads = sent.environment.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads) not in (0, torch.get_num_threads()):
            torch.set_num_threads(int(threads))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _umask() -> int:
    """Without changing it for a moment, as os.umask does."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next((line.split()[1] for line in lines if line.startswith("Umask:")), "022"), 8)

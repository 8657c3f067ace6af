"""The moment in which a process is started: what it inherits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

from rollmill.runtime.shipping import is_main_importable

__all__ = ["resource_tracker_pid", "spawn", "thread_environment"]

# Starting a process changes os.environ for a moment.
_starting = threading.Lock()


def thread_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables of a child: one thread for every numerical library unless ``extra`` says otherwise."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, "1") | dict(extra or {})


def resource_tracker_pid() -> int | None:
    """Process id of multiprocessing's own helper process; None before the first process was started."""
    pid = getattr(resource_tracker._resource_tracker, "_pid", None)
    return pid if isinstance(pid, int) else None


def spawn(process: SpawnProcess, variables: Mapping[str, str]) -> None:
    """Starts the process with these environment variables, and with SIGINT blocked until it ignores it."""
    with _starting:
        # multiprocessing's own helper process must not get the run's token: it serves the whole program.
        resource_tracker.ensure_running()
        before = {name: os.environ.get(name) for name in variables}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(variables)
        try:
            with _unimportable_main_hidden():
                process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _unimportable_main_hidden() -> Iterator[None]:
    """Keeps a process that is started meanwhile from importing a main module that it cannot import.

    ``python -`` says that its file is ``<stdin>``, which multiprocessing would look for.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or is_main_importable(main):
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file

"""Starting a process, and what it inherits."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import popen_forkserver, reduction, resource_tracker, spawn, util
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from multiprocessing.forkserver import read_signed
from multiprocessing.process import BaseProcess
from typing import Any

from rollmill.runtime import sweep
from rollmill.runtime.fork_server import connect_to_new_process, ensure_fork_server
from rollmill.runtime.shipping import is_main_importable
from rollmill.runtime.surroundings import Surroundings

_LARGEST_PIPE = 1 << 20
# Starting a process may change the main module for a moment.
_starting = threading.Lock()


def resource_tracker_pid() -> int | None:
    """Process id of multiprocessing's own helper process; None before the first process was started."""
    pid = getattr(resource_tracker._resource_tracker, "_pid", None)
    return pid if isinstance(pid, int) else None


class ServedProcess(ForkServerProcess):
    """A process that Rollmill's fork server forks.

    Attributes:
        variables: Environment variables on top of this process's.
    """

    variables: Mapping[str, str]

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802  multiprocessing's name
        return _Popen(process_obj)


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's, but with Rollmill's fork server, and with the surroundings sent first."""

    def _launch(self, process_obj: Any) -> None:
        buffer = io.BytesIO()
        set_spawning_popen(self)
        try:
            preparation: dict[str, Any] = {"surroundings": Surroundings(process_obj.variables)}
            preparation |= spawn.get_preparation_data(process_obj.name)
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        # The type stubs lack `_fds`, the descriptors that pickling has collected.
        self.sentinel, writing = connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # A copy of the pipe's end tells the child when this process dies.
        copy = os.dup(writing)
        self.finalizer = util.Finalize(self, _close, (copy, self.sentinel))
        with open(writing, "wb", closefd=True) as file:
            # All of it, so that the next process can be started while this one imports the user's script. A system may
            # allow less.
            with contextlib.suppress(OSError):
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, min(buffer.getbuffer().nbytes, _LARGEST_PIPE))
            file.write(buffer.getbuffer())
        self.pid = read_signed(self.sentinel)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def start_process(process: ServedProcess, variables: Mapping[str, str]) -> None:
    """Starts the process with these environment variables, and with SIGINT blocked until it ignores it.

    Raises:
        EOFError, ConnectionError: The fork server, or the process, ended meanwhile.
    """
    server = ensure_fork_server()
    # Stopped, it would keep us waiting for the process.
    if sweep.is_stopped(server):
        os.kill(server, signal.SIGCONT)
    process.variables = variables
    with _starting, _unimportable_main_hidden():
        process.start()


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

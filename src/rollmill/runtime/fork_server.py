"""The fork server: the process from which a program's processes are forked.

It imports once what all of them need (:mod:`rollmill.preloaded`), so that a process is up in tens of milliseconds::

    program ──starts once──> fork server ──forks──> learner, policy workers, rollout workers, ...
       └───────────── pipes, shared memory, exit codes ─────────────┘

It is :mod:`multiprocessing`'s own, apart from the one that multiprocessing itself may start in the same program for
other users. It serves all runs of the program and carries the token of none of them. If it is killed, the processes
that it has forked end with it, and the next start makes a new one. So does a start after a change of an environment
variable that libraries read while they load, such as ``TORCH_LOGS``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import process, resource_tracker
from multiprocessing.forkserver import ForkServer
from pathlib import Path

from rollmill.runtime.sweep import VARIABLE

PRELOADED = "rollmill.preloaded"

# Variables that libraries read while they load, and so in the fork server, begin like this.
_READ_WHILE_LOADING = (
    *("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("PYTORCH_", "TORCH", "TRITON_"),
)
# PyTorch's compiler reads it when a process imports it: no pool of processes for one that compiles.
_COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
# Room for the tokens of a run and of those that it is nested in, each of about 70 characters.
_ROOM_FOR_TOKENS = 1024
_PARENT = "ROLLMILL_FORK_SERVER_OF"
_PR_SET_PDEATHSIG = 1
# Where /proc/PID/stat, behind the process's name, says where its environment lies.
_ENV_START, _ENV_END = 47, 48

_changing = threading.Lock()


def thread_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables of a child: one thread for every numerical library unless ``extra`` overrides it."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", _COMPILE_THREADS)
    return dict.fromkeys(names, "1") | dict(extra or {})


class _Server(ForkServer):
    """multiprocessing's fork server, with its own environment and without a name in the file system."""

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload([PRELOADED])
        self.exit_codes: dict[int, int] = {}
        self._forkserver_pid: int | None = None
        self._forkserver_alive_fd: int | None = None
        self._forkserver_address: str | None = None
        self._socket: int | None = None
        self._read: dict[str, str] = {}
        self._replaced: dict[int, int] = {}  # Process id -> the descriptor that keeps it alive.
        self._ending: set[int] = set()

    @property
    def pid(self) -> int | None:
        return self._forkserver_pid

    def ensure_running(self) -> None:
        with _changing:
            self._end_replaced()
            read = _read_while_loading()
            if self.pid is not None:
                if not self._wait_if_ended(self.pid):
                    if read == self._read:
                        return
                    assert self._forkserver_alive_fd is not None
                    self._replaced[self.pid] = os.dup(self._forkserver_alive_fd)
                self.forget()
            self._read = read
            # multiprocessing's own helper process serves the whole program, too.
            resource_tracker.ensure_running()
            with _environment(_server_environment()), _sigint_blocked(), _folder_for_socket():
                super().ensure_running()
                assert self._forkserver_address is not None
                assert self.pid is not None
                self.exit_codes.pop(self.pid, None)  # of an earlier one with the same process id
                # The socket stays reachable by this descriptor alone: nothing is left if this program is killed.
                self._socket = os.open(self._forkserver_address, os.O_PATH)
                os.unlink(self._forkserver_address)
                self._forkserver_address = f"/proc/self/fd/{self._socket}"

    def exit_code(self, pid: int) -> int | None:
        """None while it lives; the negative signal number if a signal killed it; 255 if that is unknown."""
        if pid in self.exit_codes:
            return self.exit_codes[pid]
        try:
            # Without taking the status away: the process id stays its own meanwhile.
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            code = 255
        else:
            if status is None:
                return None
            code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self.exit_codes[pid] = code
        return code

    def _end_replaced(self) -> None:
        """Ends replaced servers without living processes: until then they report how their processes end."""
        for pid, descriptor in list(self._replaced.items()):
            if self._wait_if_ended(pid) or not Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.close(descriptor)
                del self._replaced[pid]
                self._ending.add(pid)
        self._ending = {pid for pid in self._ending if not self._wait_if_ended(pid)}

    def _wait_if_ended(self, pid: int) -> bool:
        if self.exit_code(pid) is None:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return True

    def forget(self) -> None:
        """Closes the descriptor that keeps it alive; it ends unless a forked process still holds a copy."""
        for descriptor in (self._forkserver_alive_fd, self._socket):
            if descriptor is not None:
                os.close(descriptor)
        self._forkserver_pid = self._forkserver_alive_fd = self._forkserver_address = self._socket = None

    def end(self) -> None:
        """Kills it and waits for it, so that its CPU time is counted as this program's."""
        with _changing:
            for pid in {*self._replaced, *self._ending, self.pid} - {None}:
                assert pid is not None
                if self.exit_code(pid) is not None:
                    continue  # The process id may have been reused.
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            for descriptor in self._replaced.values():
                os.close(descriptor)
            self._replaced, self._ending = {}, set()
            self.forget()


_server = _Server()
# Its threads are gone after a fork, and the lock with them.
os.register_at_fork(after_in_child=lambda: _reset())
atexit.register(lambda: _server.end())


def _reset() -> None:
    global _server, _changing
    _changing = threading.Lock()
    _server.forget()
    for descriptor in _server._replaced.values():
        os.close(descriptor)
    _server = _Server()


def ensure_fork_server() -> int:
    """Starts the fork server unless it is running, without waiting until it is up; returns its process id."""
    _server.ensure_running()
    assert _server.pid is not None
    return _server.pid


def fork_server_pid() -> int | None:
    """Process id of the fork server that was started last; None before that."""
    return _server.pid


def fork_server_exit_code(pid: int) -> int | None:
    """How a fork server of this program ended: see :meth:`subprocess.Popen.poll`; 255 if that is unknown."""
    return _server.exit_code(pid)


def connect_to_new_process(descriptors: list[int]) -> tuple[int, int]:
    """As ``multiprocessing.forkserver.connect_to_new_process``."""
    return _server.connect_to_new_process(descriptors)


def become_fork_server() -> None:
    """In the fork server, before it imports anything large."""
    # A group of our own: Ctrl-C, Ctrl-Z and signals to the program's group are the program's to handle.
    os.setpgid(0, 0)
    # systemd and Slurm send it to every process. With this one all others would die, and a learner could not save. It
    # ends with the program.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Likewise, and for the processes that are forked from here.
    if parent := os.environ.get(_PARENT):
        die_with_parent(int(parent))


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the thread that started it ends.

    Args:
        parent: Process id of its parent, which may have died already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # It died before we asked.
        os._exit(1)


def show_tokens(tokens: str) -> None:
    """Shows these tokens in ``/proc/PID/environ``, where :mod:`~rollmill.runtime.sweep` looks for them.

    It shows the memory in which the environment lay when the fork server was started, which a process forked from it
    shares until it writes there.

    Raises:
        ValueError: There is no room for them.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not start:
        return  # The system does not tell, as some sandboxes; processes are then found by their groups alone.
    area = b"\0" + ctypes.string_at(start, end - start)
    key = f"\0{VARIABLE}=".encode()
    if (found := area.find(key)) < 0:
        raise ValueError(f"{VARIABLE} is not among the variables that this process was started with.")
    begin = found + len(key)
    room = area.index(b"\0", begin) - begin
    value = os.fsencode(tokens)
    if len(value) > room:
        raise ValueError(f"{VARIABLE} has {len(value)} bytes, with those of the runs outside; at most {room} fit.")
    # Colons separate tokens; between two of them is none.
    ctypes.memmove(start + begin - 1, value.ljust(room, b":"), room)


def _read_while_loading() -> dict[str, str]:
    """Environment variables that cannot be changed after the fork, except those for threads."""
    names = thread_environment(None)
    return {
        name: value for name, value in os.environ.items() if name.startswith(_READ_WHILE_LOADING) and name not in names
    }


def _server_environment() -> dict[str, str]:
    tokens = os.environ.get(VARIABLE, "")
    is_main_thread = threading.current_thread() is threading.main_thread()
    return thread_environment(None) | {
        VARIABLE: tokens + ":" * _ROOM_FOR_TOKENS,
        # Started by another thread, the kernel would end it with that thread. Then it ends when this program has closed
        # its pipe.
        _PARENT: str(os.getpid()) if is_main_thread else "",
        # Modules in the working directory must not shadow installed ones.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(_search_path()),
        # A library that looks for a GPU in the server must not initialise CUDA, which cannot be used after a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def _search_path() -> list[str]:
    """Where the fork server finds modules: as this process does, but not in the working directory; this package last.

    multiprocessing hands ``sys.path`` to the processes that are forked, but not to the server in all versions.
    """
    here = os.getcwd()
    found = [path for path in sys.path if os.path.isabs(path) and os.pathsep not in path and path != here]
    return [*found, str(Path(__file__).parents[2])]


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables in ``os.environ`` while a process is started."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Blocks SIGINT in a process that is started meanwhile, and in those that it forks, until they ignore it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _folder_for_socket() -> Iterator[None]:
    """A new folder for multiprocessing's socket, with a path that is short enough for one."""
    # multiprocessing has no public way to choose where its sockets are, and the type stubs lack this one.
    config = process.current_process()._config  # type: ignore[attr-defined]
    before = config.get("tempdir")
    folder = tempfile.mkdtemp(prefix="rollmill-")
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    config["tempdir"] = f"/proc/self/fd/{descriptor}"
    try:
        yield
    finally:
        if before is None:
            del config["tempdir"]
        else:
            config["tempdir"] = before
        os.close(descriptor)
        # A server that could not be started leaves its socket.
        shutil.rmtree(folder, ignore_errors=True)

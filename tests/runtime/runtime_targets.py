"""What the processes of these tests run."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np

from rollmill.runtime.arena import Arena
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import LedgerSeat, Role

WORKER = Role(name="worker", phases=("work", "wait"), counters=("items",), waiting=frozenset({"wait"}))


def wait_for_stop(context: ChildContext) -> None:
    context.send("ready")
    while not context.stop.is_set():
        time.sleep(0.005)


def send_and_return(context: ChildContext, *messages: object) -> None:
    for message in messages:
        context.send(message)


def raise_error(context: ChildContext) -> None:
    raise ValueError("the third wheel is loose")


def raise_in_thread(context: ChildContext) -> None:
    threading.Thread(target=raise_error, args=(context,), name="wheels").start()
    wait_for_stop(context)


def raise_beside_a_stuck_thread(context: ChildContext) -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise_error(context)


def exit_with(context: ChildContext, code: int) -> None:
    sys.exit(code)


def exit_at_once_with(context: ChildContext, code: int) -> None:
    os._exit(code)


def kill_itself(context: ChildContext, number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(600)


def read_address_zero(context: ChildContext) -> None:
    ctypes.string_at(0)


def report_circumstances(context: ChildContext) -> None:
    context.send(
        {
            "pid": os.getpid(),
            "group": os.getpgid(0),
            "session": os.getsid(0),
            "threads": os.environ["OMP_NUM_THREADS"],
            "extra": os.environ.get("EXTRA"),
            "run": os.environ["ROLLMILL_RUN_ID"],
            "cpus": sorted(os.sched_getaffinity(0)),
            "nice": os.nice(0),
            "sigint": signal.getsignal(signal.SIGINT),
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "preloaded": "torch" in sys.modules,
        }
    )


def report_size(context: ChildContext) -> None:
    with open("/proc/self/smaps_rollup") as file:
        private = sum(int(line.split()[1]) for line in file if line.startswith("Private"))
    context.send({"private_kib": private, "descriptors": len(os.listdir("/proc/self/fd"))})


def double_in_place(context: ChildContext, arena: Arena, same: Arena) -> None:
    assert same is arena
    arena["numbers"][:] *= 2


def keep_accounts(context: ChildContext, thread_seat: LedgerSeat) -> None:
    context.ledger.enter(0)
    context.ledger.add(0, 3)
    other = thread_seat.open()
    other.enter(1)
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    context.ledger.enter(1)
    wait_for_stop(context)


def get_stuck(context: ChildContext) -> None:
    context.ledger.enter(0)
    context.send("before")
    time.sleep(600)


def wait_with_signs_of_life(context: ChildContext) -> None:
    context.send("ready")
    while not context.stop.is_set():
        context.ledger.enter(1)
        time.sleep(0.01)


def ignore_everything(context: ChildContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_stop(context)
    time.sleep(600)


def start_engines(context: ChildContext, end: str) -> None:
    """Grandchildren like a simulator's engines: in the worker's group, in a session of their own, or orphaned."""
    engines = [
        subprocess.Popen(["sleep", "600"], close_fds=False),  # as simulators written in C++ do it
        subprocess.Popen(["sleep", "600"], start_new_session=True),
        subprocess.Popen(["sleep", "600"], env={}),
        subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], start_new_session=True, stdout=subprocess.PIPE),
    ]
    assert engines[3].stdout is not None
    orphan = int(engines[3].stdout.readline())
    context.send([*(engine.pid for engine in engines[:3]), orphan])
    if end == "wait":
        wait_for_stop(context)
    os._exit(0)


def share_memory_by_name(context: ChildContext, name: str) -> None:
    """Does as VizDoom's controller does: makes named shared memory, and would remove it at its end."""
    with open(f"/dev/shm/{name}", "w+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
    wait_for_stop(context)
    memory.close()


def fork_and_die(context: ChildContext) -> None:
    """Leaves a fork that holds all of the worker's descriptors, the one that tells of its death included."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        time.sleep(600)
    context.send(pid)
    os.kill(os.getpid(), signal.SIGKILL)


def log_things(context: ChildContext) -> None:
    context.log.info("first line\nsecond line")
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("somebody.else").warning("a warning of theirs")
    warnings.warn("python's own warning", stacklevel=1)
    print("printed by a simulator", flush=True)
    os.system("echo printed by its engine")


class FailsToLoad:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[object, ...]:
        return _explode, ()


def _explode() -> None:
    raise ImportError("no such simulator here")


def report_surroundings(context: ChildContext) -> None:
    print("printed by the child", flush=True)
    os.system("echo printed by its child >&2")
    context.send(
        {
            "environment": dict(os.environ),
            "of its child": subprocess.check_output(["env", "-0"]).decode(errors="surrogateescape"),
            "shown": open("/proc/self/environ", "rb").read(),  # noqa: SIM115
            "directory": os.getcwd(),
            "umask": os.umask(0o022),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "parent": os.getppid(),
            "path": sys.path,
        }
    )


def report_random_numbers(context: ChildContext) -> None:
    import torch

    context.send((np.random.random(), random.random(), torch.rand(1).item()))  # noqa: NPY002


def report_threads(context: ChildContext) -> None:
    import torch

    square = torch.ones(400, 400)
    torch.mm(square, square)
    context.send((torch.get_num_threads(), len(os.listdir("/proc/self/task"))))


def report_compile_threads(context: ChildContext) -> None:
    import torch._inductor.config

    context.send(torch._inductor.config.compile_threads)


def report_cpu_time(context: ChildContext) -> None:
    context.send(time.process_time())


def report_nested(context: ChildContext) -> None:
    from rollmill.runtime.events import Message
    from rollmill.runtime.fork_server import fork_server_pid
    from rollmill.runtime.supervisor import Supervisor

    with Supervisor() as inner:
        inner.start("inner", report_circumstances)
        events = inner.poll(60)
        while not any(isinstance(event, Message) for event in events):
            events = inner.poll(60)
        context.send((fork_server_pid(), events[0]))
        wait_for_stop(context)

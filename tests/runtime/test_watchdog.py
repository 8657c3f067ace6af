"""What a command starts ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollmill.runtime import sweep
from rollmill.runtime.watchdog import ending_simulators

SCRIPT = """
import signal, subprocess, sys, time
from rollmill.runtime.watchdog import ending_simulators

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background of a shell
with ending_simulators():
    # As an engine does, it leaves the group and the session.
    print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
    time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_a_killed_command_has_started_is_ended(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as command:
        assert command.stdout is not None
        simulator = int(command.stdout.readline())
        assert is_alive(simulator)
        command.send_signal(number)
        command.wait(30)
    deadline = time.monotonic() + 30
    while is_alive(simulator) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(simulator)


def test_the_token_is_added_to_those_of_an_outer_run_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sweep.VARIABLE, "outer")
    with ending_simulators():
        outer, own = os.environ[sweep.VARIABLE].split(":")
        child = subprocess.Popen(["sleep", "1000"])
        assert sweep.members(own) == [child.pid]
    assert child.wait(30) == -signal.SIGKILL
    assert (outer, os.environ[sweep.VARIABLE]) == ("outer", "outer")
    monkeypatch.delenv(sweep.VARIABLE)
    with ending_simulators():
        assert os.environ[sweep.VARIABLE]
    assert sweep.VARIABLE not in os.environ

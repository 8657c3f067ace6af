"""Progress on standard error does not end what it tells of."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rollmill.runtime.standard_error import say

WORK = """
from rollmill.runtime.standard_error import say
for line in range(1000):
    say(f"line {line}")
print("done")
"""


def test_a_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say("half of it")
    assert capsys.readouterr().err == "half of it\n"


def test_a_reader_that_has_gone_does_not_end_the_work() -> None:
    command = [sys.executable, "-c", WORK]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=variables, **pipes) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.stdout is not None
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0

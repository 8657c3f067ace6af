"""A console outlives its reader."""

from __future__ import annotations

import io
import os
import sys

import pytest
from rich.console import Console

from rollmill.reporting.console import DisplayConsole, silent_once_gone


def test_a_console_without_a_reader_falls_silent() -> None:
    stdout = os.fstat(sys.__stdout__.fileno()) if sys.__stdout__ else None
    reading, writing = os.pipe()
    os.close(reading)
    with io.TextIOWrapper(os.fdopen(writing, "wb", buffering=0), write_through=True) as stream:
        console = DisplayConsole(file=stream)
        console.print("lost")
        assert console.quiet
        console.print("not even tried")
    if sys.__stdout__ and stdout:
        assert os.path.samestat(os.fstat(sys.__stdout__.fileno()), stdout), "rich's own points it to /dev/null"


def test_another_error_of_its_file_silences_it_too() -> None:
    console = Console(file=io.StringIO())
    with silent_once_gone(console):
        raise OSError("closed")
    assert console.quiet


def test_errors_of_what_is_displayed_pass() -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(ValueError, match="not a number"), silent_once_gone(console):
        raise ValueError("not a number")
    assert not console.quiet

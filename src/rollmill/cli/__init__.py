"""The command line: one module for each command, and :mod:`rollmill.cli.program`, which finds and runs them."""

from rollmill.cli.program import main

__all__ = ["main"]

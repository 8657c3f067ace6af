"""Memory of processes."""

from __future__ import annotations

import subprocess
import sys

from rollmill.benchmarking.footprint import footprint_of_children

HOLDS = "data = bytearray(64 << 20); print('ready', flush=True); input()"


def test_children_and_their_children_count() -> None:
    before = footprint_of_children()
    shell = ["sh", "-c", f'"{sys.executable}" -c "{HOLDS}"; true']
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        now = footprint_of_children()
        child.communicate("\n")
    assert now.processes == before.processes + 2
    assert now.nbytes - before.nbytes > 64 << 20

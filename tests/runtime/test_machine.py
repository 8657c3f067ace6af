"""The machine in words."""

from __future__ import annotations

from pathlib import Path

from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.machine import describe_machine


def test_the_processor_and_the_memory_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 3000\nflags\t: fpu\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  3145728 kB\n")
    assert describe_machine(tmp_path) == f"{usable_cores()} core(s) of Abacus 3000, 3.0 GiB of memory free"


def test_a_machine_without_these_files_is_described(tmp_path: Path) -> None:
    assert describe_machine(tmp_path).startswith(f"{usable_cores()} core(s) of ")

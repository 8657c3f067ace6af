"""The identifier of the machine's boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.runtime import boot


def test_it_is_the_kernels_and_stays_while_the_machine_runs() -> None:
    found = boot.boot_id()
    assert found == boot.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(found) == 36


def test_it_is_empty_where_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "none")
    assert boot.boot_id() == ""

"""Limits, read from trees of files like the kernel's, or set for this process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollmill.doctor import machine
from rollmill.doctor.finding import Finding


def container(root: Path, *, available_kb: int = 8_000_000, cpu: str = "max 100000", memory: str = "max") -> Path:
    """The files of a container with control groups of version 2."""
    for name, text in {
        "proc/meminfo": f"MemTotal: 16000000 kB\nMemAvailable: {available_kb} kB\n",
        "proc/self/cgroup": "0::/mine\n",
        "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/mine/cpu.max": f"{cpu}\n",
        "sys/fs/cgroup/mine/memory.max": f"{memory}\n",
        "sys/fs/cgroup/mine/memory.current": "1000\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def limited(limit: str, value: int, check: str) -> Finding:
    """What a check finds in a process with a limit (soft and hard)."""
    code = (
        f"import json, resource; resource.setrlimit(resource.{limit}, ({value}, {value}))\n"
        f"from rollmill.doctor import machine; print(json.dumps(machine.{check}()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Finding(*json.loads(done.stdout))


def test_one_core_or_less_of_its_time_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert machine.check_cores(container(tmp_path)) == Finding("cores", "ok", "4 of 8 usable")
    some = machine.check_cores(container(tmp_path, cpu="250000 100000"))
    assert some == Finding("cores", "ok", "4 of 8 usable, the container's limit is 2.5")
    few = machine.check_cores(container(tmp_path, cpu="150000 100000"))
    assert few.state == "warning"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert machine.check_cores(container(tmp_path)).state == "warning"


def test_memory_is_enough_little_or_too_little(tmp_path: Path) -> None:
    assert machine.check_memory(container(tmp_path)) == Finding("memory", "ok", "7.6 GiB available")
    limited = machine.check_memory(container(tmp_path, memory="700000000"))
    assert limited.state == "warning"
    assert limited.found == "667.6 MiB available, the container's limit is 667.6 MiB"
    assert machine.check_memory(container(tmp_path, available_kb=300_000)).state == "problem"


def test_shared_memory_can_be_made_unless_a_limit_forbids_it() -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        assert machine.check_shared_memory().state == "ok"
    small = limited("RLIMIT_FSIZE", 1 << 20, "check_shared_memory")
    assert (small.state, small.advice) == ("warning", "ulimit -f unlimited")
    assert small.found.endswith("larger than 1.0 MiB")
    none = limited("RLIMIT_FSIZE", 4096, "check_shared_memory")
    assert none.state == "problem"
    assert "no memfd can be made" in none.found


def test_dev_shm_matters_to_vizdoom_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine.check_dev_shm(tmp_path)
    assert there.found.endswith(" free")
    assert machine.check_dev_shm(tmp_path / "none").state == "warning"
    monkeypatch.setattr(machine, "_LEAST_DEV_SHM", 1 << 62)
    assert machine.check_dev_shm(tmp_path).state == "warning"
    monkeypatch.setitem(sys.modules, "vizdoom", None)  # as if it were not installed
    assert machine.check_dev_shm(tmp_path).state == "ok"
    assert machine.check_dev_shm(tmp_path / "none").state == "ok"


@pytest.mark.parametrize(("files", "state"), [(24, "problem"), (256, "warning"), (1024, "ok")])
def test_few_open_files_are_a_warning_and_too_few_a_problem(files: int, state: str) -> None:
    found = limited("RLIMIT_NOFILE", files, "check_open_files")
    assert found.state == state
    assert found.found == f"{files:,} for each process (at most {files:,})"
    assert found.advice == ("" if state == "ok" else "ulimit -n 1024 in the shell that trains")


@pytest.mark.parametrize(("has_units", "word"), [(True, "in bf16"), (False, "in fp32")])
def test_bf16_units_say_what_is_computed_how(has_units: bool, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_bf16_units", lambda _: has_units)
    assert machine.check_bf16().found.endswith(word)


def test_threads_that_a_variable_binds_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    assert machine.check_threads().state == "ok"
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert machine.check_threads().state == "ok"
    monkeypatch.setenv("OMP_PROC_BIND", "TRUE")
    found = machine.check_threads()
    assert found.state == "warning"
    assert "OMP_PROC_BIND=TRUE binds" in found.found
    assert found.advice.startswith("unset OMP_PROC_BIND")


def test_a_gpu_is_absent_hidden_unusable_or_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.check_gpu(tmp_path) == Finding("GPU", "ok", "none with a driver: networks are computed on the CPU")
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun 6 2023\nGCC version: 12.2.0\n"
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    without = machine.check_gpu(tmp_path)
    assert without.state == "warning"
    assert without.found.startswith("driver 535.54.03, but PyTorch ")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    unusable = machine.check_gpu(tmp_path)
    assert unusable.state == "warning"
    assert unusable.found == "driver 535.54.03, which PyTorch's CUDA 13.0 cannot use"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    hidden = machine.check_gpu(tmp_path)
    assert (hidden.state, hidden.found.partition(":")[0]) == ("ok", "hidden by CUDA_VISIBLE_DEVICES='-1'")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    assert machine.check_gpu(tmp_path) == Finding("GPU", "ok", "card 0, card 1; driver 535.54.03, CUDA 13.0")

"""Checks of cores, memory, limits, matrix units and the GPU."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from rollmill.doctor.finding import Finding, State
from rollmill.extras import missing_modules
from rollmill.models.device import has_bf16_units
from rollmill.runtime import cgroups
from rollmill.runtime.affinity import usable_cpus
from rollmill.runtime.machine import readable

_ROOT = Path("/")
# docs/memory.md: 64 environments of CartPole take 330 MB in all processes, those of Atari 555 MB.
_LEAST_MEMORY, _COMFORTABLE_MEMORY = 330_000_000, 1 << 30
# The shared memory of an engine of VizDoom has 10.7 MB, of which it uses 0.1 MB.
_LEAST_DEV_SHM = 16 << 20
# CartPole trains with 48 files for each process, and not with 32. docs/memory.md: an engine of VizDoom needs 10.
_LEAST_FILES, _COMFORTABLE_FILES = 48, 1024
# With these, OpenMP binds each process that imports PyTorch to the same cores.
_BINDING, _UNBOUND = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"), ("", "false")


def check_cores(root: Path = _ROOT) -> Finding:
    """How many cores this process may use, and how much of their time.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    cpus, quota = len(usable_cpus()), cgroups.cpu_quota(root)
    found = f"{cpus} of {os.cpu_count()} usable"
    if quota is not None:
        found += f", the container's limit is {quota:g}"
    if min(cpus, cpus if quota is None else quota) < 2:
        advice = "simulation, inference and learning take turns on less than two cores: give the container more"
        return Finding("cores", "warning", found, advice)
    return Finding("cores", "ok", found)


def check_memory(root: Path = _ROOT) -> Finding:
    """How much memory is available, and the container's limit.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    available, limit = cgroups.available_memory(root), cgroups.memory_limit(root)
    found = f"{readable(available)} available"
    if limit is not None:
        found += f", the container's limit is {readable(limit)}"
    advice = "end other programs, or give the container more memory (docs/memory.md has what runs need)"
    if available < _LEAST_MEMORY:
        return Finding("memory", "problem", found, advice)
    if available < _COMFORTABLE_MEMORY:
        return Finding("memory", "warning", found, f"{advice}; train with few environments (--num-envs 16)")
    return Finding("memory", "ok", found)


def check_shared_memory() -> Finding:
    """Whether anonymous shared memory (memfd) can be made, which all data between processes lies in."""
    # Imported here, so that the other checks can be made where numpy is broken.
    import numpy as np

    from rollmill.runtime.arena import Arena, ArenaLayout

    try:
        arena = Arena.create(ArenaLayout().add("probe", 1 << 16, np.uint8))
        arena["probe"][:] = 1
        arena.close()
    except (OSError, MemoryError) as error:
        advice = "allow memfd_create (seccomp profile of the container) and larger files (ulimit -f unlimited)"
        return Finding("shared memory", "problem", f"no memfd can be made ({error})", advice)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY:
        found = f"memfd works, but no file and no shared memory may be larger than {readable(limit)}"
        return Finding("shared memory", "warning", found, "ulimit -f unlimited")
    return Finding("shared memory", "ok", "memfd works, limited by memory only")


def check_dev_shm(folder: Path = Path("/dev/shm")) -> Finding:
    """How much room ``/dev/shm`` has: VizDoom's engines exchange pictures in it, Rollmill itself does not use it.

    Args:
        folder: Where it is mounted.
    """
    check, advice = "/dev/shm", "for VizDoom: docker run --shm-size 1g, or mount a tmpfs there"
    try:
        room = os.statvfs(folder)
    except OSError as error:
        return Finding(check, "ok" if missing_modules("vizdoom") else "warning", f"none ({error.strerror})", advice)
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    found = f"{readable(free)} of {readable(total)} free"
    if free < _LEAST_DEV_SHM and not missing_modules("vizdoom"):
        return Finding(check, "warning", found, advice)
    return Finding(check, "ok", found)


def check_open_files() -> Finding:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)} for each process (at most {_limit(hard)})"
    if soft == resource.RLIM_INFINITY or soft >= _COMFORTABLE_FILES:
        return Finding("open files", "ok", found)
    state: State = "problem" if soft < _LEAST_FILES else "warning"
    return Finding("open files", state, found, f"ulimit -n {_COMFORTABLE_FILES} in the shell that trains")


def _limit(value: int) -> str:
    return "any number" if value == resource.RLIM_INFINITY else f"{value:,}"


def check_bf16() -> Finding:
    """Whether the CPU has units for bf16, with which networks on images are computed."""
    import torch

    if has_bf16_units(torch.device("cpu")):
        return Finding("bf16 units", "ok", "the CPU has them: networks on images are computed in bf16")
    return Finding("bf16 units", "ok", "the CPU has none: everything is computed in fp32")


def check_threads() -> Finding:
    """Whether anything binds the threads of all processes to the same cores."""
    import torch

    found = f"PyTorch starts with {torch.get_num_threads()}; each process of a run sets its own number"
    bound = [f"{name}={value}" for name in _BINDING if (value := os.environ.get(name, "")).lower() not in _UNBOUND]
    if bound:
        found += f"; {', '.join(bound)} binds them to cores"
        names = " ".join(word.partition("=")[0] for word in bound)
        return Finding("threads", "warning", found, f"unset {names}: all processes of a run would share these cores")
    return Finding("threads", "ok", found)


def check_gpu(root: Path = _ROOT) -> Finding:
    """Which GPUs PyTorch can use, and whether there is one that it cannot use.

    Args:
        root: Where ``proc`` is found.
    """
    import torch

    driver = _driver(root)
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return Finding("GPU", "ok", f"{names}; driver {driver or 'unknown'}, CUDA {torch.version.cuda}")
    if driver is None:
        return Finding("GPU", "ok", "none with a driver: networks are computed on the CPU")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Finding("GPU", "ok", f"hidden by CUDA_VISIBLE_DEVICES={visible!r}: networks are computed on the CPU")
    if torch.version.cuda is None:
        found = f"driver {driver}, but PyTorch {torch.__version__} is built without CUDA"
        return Finding("GPU", "warning", found, "install PyTorch with CUDA: https://pytorch.org/get-started/locally/")
    found = f"driver {driver}, which PyTorch's CUDA {torch.version.cuda} cannot use"
    advice = "update the driver, or install PyTorch for an older CUDA; in a container, pass the GPU (--gpus all)"
    return Finding("GPU", "warning", found, advice)


def _driver(root: Path) -> str | None:
    """The version of NVIDIA's kernel module; None without one."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", text)
    return found[1] if found else "of unknown version"

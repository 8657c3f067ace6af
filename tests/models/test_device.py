"""Devices named in configurations, and the threads of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollmill.models.device import (
    DeviceError,
    check_device_name,
    has_bf16_units,
    one_thread,
    resolve_device,
    take_device,
    take_threads,
)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_names_of_devices_are_accepted_whether_or_not_they_exist(name: str) -> None:
    check_device_name("learner.device", name)


@pytest.mark.parametrize(
    "name", ["gpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:1 ", "", None, 0, torch.device("cpu")]
)
def test_other_names_are_refused_with_what_is_allowed(name: object) -> None:
    with pytest.raises(
        ValueError, match=r"^learner\.device=.*: choose 'auto', 'cpu', 'cuda' or 'cuda:<index>'$"
    ) as error:
        check_device_name("learner.device", name)
    assert repr(name) in str(error.value)


def test_auto_is_the_gpu_if_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == take_device("cpu") == torch.device("cpu")


def test_a_device_that_this_machine_lacks_is_named_with_how_many_it_has() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(
        DeviceError, match=rf"device='cuda:{count}': this process sees {count} CUDA device\(s\); use 'auto'"
    ):
        take_device(f"cuda:{count}")


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"device='gpu' is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
    ):
        resolve_device("gpu")
    assert issubclass(DeviceError, ValueError)


def test_one_thread_is_a_context_and_a_decorator_that_restores_the_number() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        assert one_thread()(torch.get_num_threads)() == 1
        with pytest.raises(ValueError, match="no"), one_thread():
            raise ValueError("no")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_process_that_takes_threads_computes_without_denormal_numbers() -> None:
    before = torch.get_num_threads()
    torch.set_flush_denormal(False)
    small = torch.full((8,), 1e-30)
    assert (small * 1e-10).all()
    take_threads(1)
    try:
        assert torch.get_num_threads() == 1
        assert not (small * 1e-10).any()
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def test_units_for_bf16_are_those_of_the_processors_flags() -> None:
    text = Path("/proc/cpuinfo").read_text()
    words = {word for line in text.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}
    assert has_bf16_units(torch.device("cpu")) == bool(words & {"amx_bf16", "avx512_bf16", "bf16"})
    assert not has_bf16_units(torch.device("meta"))


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, rollmill.models.device as d; d.check_device_name('a', 'cpu'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

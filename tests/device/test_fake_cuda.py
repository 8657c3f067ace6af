"""What the fake GPU refuses and counts: negative controls for all other tests with it."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from tests.device.conftest import NEEDS_NO_GPU
from tests.device.fake_cuda import FakeCuda, MixedDevicesError
from torch import nn


def test_a_missing_transfer_raises(gpu: FakeCuda) -> None:
    layer = nn.Linear(3, 4).to("cuda")
    layer(torch.zeros(2, 3).to("cuda"))
    with pytest.raises(MixedDevicesError, match=r"aten::addmm .* \(2, 3\) on cpu"):
        layer(torch.zeros(2, 3))


@pytest.mark.parametrize("reads", [lambda x: x.numpy(), np.asarray])
def test_numpy_cannot_read_gpu_memory(gpu: FakeCuda, reads) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MixedDevicesError):
        reads(torch.zeros(3, device="cuda"))


def test_a_generator_belongs_to_its_device(gpu: FakeCuda) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda
    with pytest.raises(MixedDevicesError, match="generator on cuda"):
        torch.randn(3, generator=generator)
    with pytest.raises(MixedDevicesError, match="generator on cpu"):
        torch.empty(3, device="cuda").normal_(generator=torch.Generator())


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: bool(x[0] > 0),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.ones(3).to(x.device),
        lambda x: torch.ones(3).to(x.device, non_blocking=True),
        lambda x: torch.ones(3).pin_memory().to(x.device),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_what_makes_the_host_wait_is_counted(gpu: FakeCuda, wait) -> None:  # type: ignore[no-untyped-def]
    x = torch.ones(3, device="cuda")
    gpu.counts.reset()
    wait(x)
    assert gpu.counts.summary()["waits"] == 1, gpu.counts.waits


def test_page_locked_memory_is_copied_without_a_wait_also_through_numpy(gpu: FakeCuda) -> None:
    pinned = torch.empty(4, 3, pin_memory=True).numpy()
    gpu.counts.reset()
    assert torch.from_numpy(pinned[1:]).to("cuda", non_blocking=True).is_cuda
    assert gpu.counts.summary() == {"operations": 0, "uploads": 1, "downloads": 0, "waits": 0}


def test_operations_of_the_forward_and_the_backward_pass_are_counted(gpu: FakeCuda) -> None:
    layer, x = nn.Linear(3, 4).to("cuda"), torch.zeros(2, 3, device="cuda")
    gpu.counts.reset()
    layer(x).sum().backward()
    assert gpu.counts.operations["aten::addmm"] == gpu.counts.operations["aten::mm"] == 1
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda


def test_recurrent_weights_are_one_storage_until_they_are_copied(gpu: FakeCuda) -> None:
    def storages(layer: nn.GRU) -> int:
        return len({p.untyped_storage().data_ptr() for p in layer.parameters()})

    layer = nn.GRU(3, 4).to("cuda")
    assert storages(layer) == 1
    copied, x = copy.deepcopy(layer), torch.ones(5, 2, 3, device="cuda")
    assert storages(copied) == 4
    with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
        copied(x)
    copied.flatten_parameters()
    assert storages(copied) == 1
    torch.testing.assert_close(copied(x)[0], layer(x)[0])


def test_fused_optimisers_refuse_other_strides(gpu: FakeCuda) -> None:
    parameter = nn.Parameter(torch.ones(2, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last))
    parameter.grad = torch.ones_like(parameter, memory_format=torch.contiguous_format)
    with pytest.raises(RuntimeError, match="strides"):
        torch.optim.Adam([parameter], fused=True).step()


def test_threads_see_the_gpu(gpu: FakeCuda) -> None:
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.zeros(1, device="cuda") + 1))
    thread.start()
    thread.join()
    assert made[0].is_cuda


@NEEDS_NO_GPU
def test_torch_is_left_as_it_was() -> None:
    generator, is_available, run = torch.Generator, torch.cuda.is_available, threading.Thread.run
    with FakeCuda():
        assert torch.cuda.is_available()
    assert (torch.Generator, torch.cuda.is_available, threading.Thread.run) == (generator, is_available, run)
    assert torch.zeros(1).device == torch.device("cpu")

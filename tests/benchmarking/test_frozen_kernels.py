"""The frozen kernels do the work that they stand for."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmarks.machine_bound import frozen_gru, frozen_kernels, frozen_networks
from benchmarks.machine_bound.frozen_gru import unroll
from benchmarks.machine_bound.frozen_kernels import Variant, cartpole_env, cartpole_envpool_env
from benchmarks.machine_bound.frozen_networks import (
    _encode,
    _encoder,
    _loss,
    _micro_batches,
    _Trainer,
    atari_inference,
    atari_train,
    cartpole_inference,
    cartpole_train,
    vizdoom_inference,
    vizdoom_train,
)
from torch import nn


@pytest.mark.parametrize("module", [frozen_gru, frozen_kernels, frozen_networks])
def test_imports_nothing_of_ours(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported & {"ale_py", "torch"}
    ours = {name for name in imported if name.startswith(("rollmill", "benchmarks"))}
    assert ours <= {"benchmarks.machine_bound.frozen_gru", "benchmarks.machine_bound.frozen_kernels"}
    assert all(node.level == 0 for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))


def test_nature_network_has_the_published_size() -> None:
    encoder = _encoder("nature", (4, 84, 84))
    head = nn.Linear(512, 5)
    convolutions = 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1)
    dense = 512 * (64 * 7 * 7 + 1)
    assert sum(p.numel() for p in encoder.parameters()) == convolutions + dense
    assert sum(p.numel() for m in (encoder, head) for p in m.parameters()) == 1_686_693


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 72, 128)])
def test_the_folded_division_is_exact(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    encoder = _encoder("nature" if shape[0] == 4 else "simplified", shape)
    images = torch.randint(0, 256, (3, *shape)).float()
    torch.testing.assert_close(_encode(encoder, images), encoder(images / 255), rtol=1e-4, atol=1e-5)


def test_micro_batches_take_one_step_with_the_gradient_of_the_whole() -> None:
    torch.manual_seed(0)
    data = torch.randn(64, 8)
    modules = nn.ModuleList([nn.Linear(8, 4)])
    before = modules[0].weight.detach().clone()
    gradient = torch.autograd.grad(_loss(modules[0](data)), modules[0].weight)[0]
    trainer = _Trainer(modules, 16, 64)
    for part in data.split(16)[:3]:
        trainer.learn(_loss(modules[0](part)))
        assert torch.equal(modules[0].weight, before)
    (_loss(modules[0](data[48:])) / 4).backward()
    torch.testing.assert_close(modules[0].weight.grad, gradient)
    modules[0].zero_grad()
    for part in data.split(16)[:1]:
        trainer.learn(_loss(modules[0](part)))
    assert not torch.equal(modules[0].weight, before)
    assert modules[0].weight.grad is None


def test_micro_batches_divide_the_minibatch() -> None:
    assert _micro_batches((64, 128, 256), 256) == (64, 128, 256)
    assert _micro_batches((64, 128, 256), 192) == (64,)
    assert _micro_batches((64, 128, 256), 32) == (32,)


def test_the_frozen_gru_is_a_gru() -> None:
    torch.manual_seed(0)
    core, x = torch.nn.GRU(6, 5), torch.randn(4, 3, 6)
    state, weight = torch.randn(3, 5), torch.randn(4, 3, 5)
    weight_in, weight_state, bias_in, bias_state = core.parameters()
    mine = unroll(torch.nn.functional.linear(x, weight_in, bias_in), state, weight_state, bias_state)
    theirs = core(x, state[None])[0]
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(
        torch.autograd.grad((mine * weight).sum(), list(core.parameters())),
        torch.autograd.grad((theirs * weight).sum(), list(core.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


CATALOGUES: list[Callable[[], list[Variant]]] = [
    cartpole_env,
    cartpole_envpool_env,
    atari_inference,
    atari_train,
    vizdoom_inference,
    vizdoom_train,
    cartpole_inference,
    cartpole_train,
]


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")  # EnvPool's spaces
@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda c: c.__name__)
def test_variants_build_and_run(catalogue: Callable[[], list[Variant]]) -> None:
    variants = catalogue()
    names = [variant.name for variant in variants]
    assert len(set(names)) == len(names)
    kernel = variants[0].build()
    assert kernel.samples > 0
    kernel.run()
    kernel.run()

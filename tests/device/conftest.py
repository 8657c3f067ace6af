"""Each test that takes ``device`` runs on the CPU and on a fake GPU, and on a real one where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from tests.device.fake_cuda import FakeCuda

_NO_FAKE = "the fake GPU works only on a machine without a GPU"
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
NEEDS_NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason=_NO_FAKE)
FAKE, REAL = pytest.param("fake-cuda", marks=NEEDS_NO_GPU), pytest.param("cuda", marks=NEEDS_GPU)


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    if torch.cuda.is_available():
        pytest.skip(_NO_FAKE)
    with FakeCuda() as gpu:
        yield gpu


@pytest.fixture(params=["cpu", FAKE, REAL])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "fake-cuda":
        request.getfixturevalue("gpu")
    elif request.param == "cuda":
        request.getfixturevalue("exact_float32")
    return torch.device("cpu" if request.param == "cpu" else "cuda")


@pytest.fixture
def exact_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results can be compared with the CPU's: no float32 is rounded to the 10 bits of TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.fixture(params=[FAKE, REAL])
def a_gpu(request: pytest.FixtureRequest) -> contextlib.AbstractContextManager[object]:
    """Enter it to have a GPU: a fake one, and a real one where there is one."""
    if request.param == "fake-cuda":
        return FakeCuda()
    request.getfixturevalue("exact_float32")
    return contextlib.nullcontext()

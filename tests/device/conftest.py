"""Each test that takes ``device`` runs on the CPU and on a fake GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.device.fake_cuda import FakeCuda


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with FakeCuda() as gpu:
        yield gpu


@pytest.fixture(params=["cpu", "fake-cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "fake-cuda":
        request.getfixturevalue("gpu")
    return torch.device("cpu" if request.param == "cpu" else "cuda")

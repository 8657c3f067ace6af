"""For `--import` of whole runs: each process that a run starts gets a fake GPU, and the program itself does not."""

from __future__ import annotations

import multiprocessing

from tests.device.fake_cuda import FakeCuda

if multiprocessing.parent_process() is not None:
    GPU = FakeCuda()
    GPU.__enter__()

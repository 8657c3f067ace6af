"""For `--import` of whole runs: each process that a run starts gets a fake GPU, and the program itself does not."""

from __future__ import annotations

import multiprocessing

from tests.device.fake_cuda import FakeCuda

_OF_BATCHES = ("learning/minibatches.py", "learning/tensors.py")


class StrictCuda(FakeCuda):
    """Raises where a learner copies its batch from pageable memory, which makes it wait."""

    def wait(self, reason: str) -> None:
        """See :meth:`FakeCuda.wait`."""
        super().wait(reason)
        waits = [wait for wait in self.counts.waits if "upload" in wait and any(file in wait for file in _OF_BATCHES)]
        if waits:
            raise RuntimeError(f"a learner waits for its batch: {', '.join(waits)}")


if multiprocessing.parent_process() is not None:
    GPU = StrictCuda()
    GPU.__enter__()

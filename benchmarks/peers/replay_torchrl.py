"""torchrl's prioritised replay: segment trees in C++, data in a TensorDict or a pytree of tensors."""

from __future__ import annotations

import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")  # it logs to standard output, which is for JSON

from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import torch
from replay_measure import ALPHA, BETA, EPSILON, INSERT, Adapter, Sampled, Transitions, main
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)


class TorchrlAdapter(Adapter):
    name = "torchrl"
    configuration = "PrioritizedReplayBuffer of a TensorDict in LazyTensorStorage, float32 trees (its default)"
    dtype: ClassVar[torch.dtype] = torch.float
    storage: ClassVar[type] = LazyTensorStorage

    def __init__(self, capacity: int) -> None:
        torch.set_num_threads(1)
        self._buffer = self._make(self.storage(capacity))

    def _make(self, storage: Any) -> Any:
        return PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, eps=EPSILON, dtype=self.dtype, storage=storage)

    @staticmethod
    def versions() -> dict[str, str]:
        return {name: version(name) for name in ("torchrl", "tensordict", "torch")}

    @property
    def size(self) -> int:
        return len(self._buffer)

    @staticmethod
    def _data(transitions: Transitions) -> Any:
        fields = {name: torch.from_numpy(values) for name, values in transitions._asdict().items()}
        return TensorDict(fields, batch_size=[INSERT])

    def _priority(self, td_error: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(td_error).to(self.dtype)  # its trees take no other

    def insert(self, transitions: Transitions) -> None:
        self._buffer.extend(self._data(transitions))

    def sample(self, batch: int) -> tuple[Any, dict[str, Any]]:
        sampled: tuple[Any, dict[str, Any]] = self._buffer.sample(batch, return_info=True)
        return sampled

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._buffer.update_priority(sampled[1]["index"], self._priority(td_error))

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        self._buffer.update_priority(torch.from_numpy(slots), self._priority(td_error))

    def unpack(self, sampled: Any) -> Sampled:
        data, info = sampled
        fields = (data[name].numpy() for name in Transitions._fields)
        return Sampled(Transitions(*fields), np.asarray(info["priority_weight"]))


class PytreeTorchrlAdapter(TorchrlAdapter):
    configuration = "PrioritizedReplayBuffer of a dict of tensors in LazyTensorStorage, float32 trees (its default)"

    @staticmethod
    def _data(transitions: Transitions) -> Any:
        return {name: torch.from_numpy(values) for name, values in transitions._asdict().items()}


class DoubleTorchrlAdapter(PytreeTorchrlAdapter):
    configuration = "PrioritizedReplayBuffer of a dict of tensors in LazyTensorStorage, float64 trees"
    dtype = torch.double

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Without this the first insertion fails in 0.14.1: the default is a float32, which these trees refuse.
        self._buffer.sampler._max_priority = (torch.ones((), dtype=self.dtype), None)


class MemmapTorchrlAdapter(TorchrlAdapter):
    configuration = "PrioritizedReplayBuffer of a TensorDict in LazyMemmapStorage, float32 trees"
    storage = LazyMemmapStorage


class TensorDictTorchrlAdapter(TorchrlAdapter):
    configuration = "TensorDictPrioritizedReplayBuffer in LazyTensorStorage, float32 trees (its default)"

    def _make(self, storage: Any) -> Any:
        return TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, eps=EPSILON, storage=storage)

    def sample(self, batch: int) -> Any:
        return self._buffer.sample(batch)

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self._buffer.update_priority(sampled["index"], self._priority(td_error))

    def unpack(self, sampled: Any) -> Sampled:
        fields = (sampled[name].numpy() for name in Transitions._fields)
        return Sampled(Transitions(*fields), sampled["priority_weight"].numpy())


if __name__ == "__main__":
    main(
        {
            "pytree": PytreeTorchrlAdapter,
            "double": DoubleTorchrlAdapter,
            "tensordict": TorchrlAdapter,
            "memmap": MemmapTorchrlAdapter,
            "tensordict-buffer": TensorDictTorchrlAdapter,
        }
    )

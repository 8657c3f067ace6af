from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.random_states import (
    pack_generator,
    pack_random_states,
    restore_generator,
    restore_random_states,
)

BIT_GENERATORS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


def draw(generator: np.random.Generator) -> list[float]:
    return [
        *generator.random(5).tolist(),
        *generator.integers(0, 100, 3, dtype=np.uint32).tolist(),
        random.random(),
        random.gauss(0, 1),
        *torch.randn(4).tolist(),
    ]


@pytest.mark.parametrize("kind", BIT_GENERATORS)
def test_streams_go_on_from_a_checkpoint_as_if_never_stopped(
    kind: type[np.random.BitGenerator], tmp_path: Path
) -> None:
    generator = np.random.Generator(kind(5))
    random.seed(5)
    torch.manual_seed(5)
    # An odd number of 32-bit draws and of Gaussians: generators keep the other half for the next call.
    generator.integers(0, 9, dtype=np.uint32)
    random.gauss(0, 1)
    store = CheckpointStore(tmp_path, CheckpointConfig())
    store.save({"random": pack_random_states({"minibatches": generator})}, 1)
    expected = draw(generator)

    random.seed(6)
    torch.manual_seed(6)
    resumed = np.random.Generator(kind(6))
    assert draw(resumed) != expected
    restore_random_states(store.load_latest().state["random"], {"minibatches": resumed})
    assert draw(resumed) == expected


def test_another_kind_of_generator_is_refused() -> None:
    packed = pack_generator(np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"of a PCG64, this generator is a Philox: make it with"):
        restore_generator(np.random.Generator(np.random.Philox(1)), packed)


def test_other_names_are_refused() -> None:
    packed = pack_random_states({"a": np.random.default_rng(1)})
    with pytest.raises(ValueError, match=r"saved are the random states \['a'\], to be restored are \['b'\]"):
        restore_random_states(packed, {"b": np.random.default_rng(1)})

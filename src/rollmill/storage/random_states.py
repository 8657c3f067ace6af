"""States of random generators as plain data, which a checkpoint can hold and ``weights_only=True`` loads.

Importing this module imports no torch: its functions do, where torch's own generators are concerned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np


def pack_generator(generator: np.random.Generator) -> dict[str, Any]:
    """Returns the state of a NumPy generator as strings, integers and lists. Needs no torch."""
    packed = _plain(generator.bit_generator.state)
    assert isinstance(packed, dict)
    return packed


def restore_generator(generator: np.random.Generator, packed: Mapping[str, Any]) -> None:
    """Puts a NumPy generator into the state that ``pack_generator`` gave. Needs no torch.

    Raises:
        ValueError: The state is of another kind of bit generator.
    """
    own = type(generator.bit_generator).__name__
    if packed["bit_generator"] != own:
        raise ValueError(
            f"the saved random state is of a {packed['bit_generator']}, this generator is a {own}: make it with "
            f"numpy.random.Generator(numpy.random.{packed['bit_generator']}())"
        )
    generator.bit_generator.state = _arrays(packed)


def pack_random_states(generators: Mapping[str, np.random.Generator] | None = None) -> dict[str, Any]:
    """Returns the states of this process's generators: Python's, torch's (CPU, and CUDA once in use), and those given.

    Args:
        generators: NumPy generators by name. (NumPy's global one is not saved: nothing of Rollmill draws from it.)
    """
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "torch_cuda": cuda,
        "numpy": {name: pack_generator(generator) for name, generator in (generators or {}).items()},
    }


def restore_random_states(
    packed: Mapping[str, Any], generators: Mapping[str, np.random.Generator] | None = None
) -> None:
    """Puts this process's generators into the states that ``pack_random_states`` gave.

    A run that is resumed with fewer or more CUDA devices gets the streams of those that both have.

    Args:
        packed: From ``pack_random_states``.
        generators: NumPy generators by the same names.

    Raises:
        ValueError: A name is missing on either side, or a generator is of another kind.
    """
    import torch

    generators = generators or {}
    if set(generators) != set(packed["numpy"]):
        raise ValueError(
            f"saved are the random states {sorted(packed['numpy'])}, to be restored are {sorted(generators)}: give "
            f"generators of the same names"
        )
    for name, generator in generators.items():
        restore_generator(generator, packed["numpy"][name])
    version, internal, gauss_next = packed["python"]
    random.setstate((version, tuple(internal), gauss_next))
    torch.set_rng_state(packed["torch"].cpu())
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), packed["torch_cuda"], strict=False):
            torch.cuda.set_rng_state(state.cpu(), device)


def _plain(value: Any) -> Any:
    """Nested dicts of arrays and numbers, with each array as its dtype and a list of Python integers."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    """The inverse of ``_plain``."""
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"dtype", "values"}:
        return np.array(value["values"], dtype=value["dtype"])
    return {key: _arrays(item) for key, item in value.items()}

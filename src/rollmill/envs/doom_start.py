"""Starts Doom's engines so that one that ends meanwhile raises, and does not end the process.

If an engine ends before its first message, ``DoomController::close`` of ViZDoom (at least 1.2.4 to 1.3.2) reads a flag
of the game's state. The pointer to this state is still null, so that the process of the caller ends with SIGSEGV. Here
the pointer is set to a state of zeros first: ``close`` finds no flag, and ``DoomGame.init`` raises. A started engine's
own state replaces it.

The pointer is a private member. Its place is not written down here, but learnt from exported functions of the library,
which are called with made-up objects. A library without these functions is used as it is.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rollmill.envs.doom_scenarios import missing_engine
from rollmill.runtime.sweep import remove_leftovers

try:
    import vizdoom.vizdoom as library
    from vizdoom import DoomGame
except ImportError as error:
    raise missing_engine(error) from error

# Bounds above the sizes of the objects. ViZDoom 1.3.2 has 3,016 bytes of controller and 10.6 million of state.
_GAME_WORDS, _CONTROLLER_BYTES, _STATE_BYTES = 128, 16_384, 1 << 24
_WORD = ctypes.sizeof(ctypes.c_size_t)
# Pages that are never written to take no memory.
_blank_state = ctypes.c_char.from_buffer(mmap.mmap(-1, _STATE_BYTES))


class _Places(NamedTuple):
    """Offsets in bytes.

    Attributes:
        controller: Of the pointer to the controller, in a game.
        state: Of the pointer to the state, in a controller.
    """

    controller: int
    state: int


def start_engine(game: DoomGame) -> None:
    """Start an engine.

    Raises:
        Exception: One of ViZDoom's: the engine has ended. Its shared memory is removed.
    """
    began = time.time()
    protect_start(game)
    try:
        game.init()
    except Exception:
        remove_leftovers(began)
        raise


def protect_start(game: DoomGame) -> bool:
    """Let the next start of an engine raise if the engine ends meanwhile; False if the library does not allow it."""
    places = _places()
    if places is None:
        return False
    controller = _read(_object_of(game) + places.controller)
    state = ctypes.c_size_t.from_address(controller + places.state)
    if not state.value:
        state.value = ctypes.addressof(_blank_state)
    return True


@functools.cache
def _places() -> _Places | None:
    """Find the places; None if the library has other functions or objects."""
    try:
        functions = ctypes.CDLL(library.__file__)
        state_of = _getter(functions._ZN7vizdoom14DoomController12getGameStateEv, ctypes.c_size_t)
        ticrate_of = _getter(functions._ZN7vizdoom8DoomGame10getTicrateEv, ctypes.c_uint32)
    except (OSError, AttributeError):
        return None
    # Each word of this controller is its own offset, so that the state's pointer tells where it is.
    offsets = np.arange(0, _CONTROLLER_BYTES, _WORD, dtype=np.uintp)
    # Each word of this game points to a controller of its own, and all that is in a controller is its number.
    controllers = np.repeat(np.arange(_GAME_WORDS, dtype=np.uint32)[:, None], _CONTROLLER_BYTES // 4, axis=1)
    pointers = controllers.ctypes.data + np.arange(_GAME_WORDS, dtype=np.uintp) * np.uintp(_CONTROLLER_BYTES)
    places = _Places(_WORD * ticrate_of(pointers.ctypes.data), state_of(offsets.ctypes.data))
    # A real game must agree.
    game = DoomGame()
    game.set_ticrate(4321)
    if ticrate_of(_object_of(game)) != 4321 or state_of(_read(_object_of(game) + places.controller)) != 0:
        return None
    return places


def _getter(function: Any, result: Any) -> Callable[[int], int]:
    function.argtypes, function.restype = [ctypes.c_void_p], result
    found: Callable[[int], int] = function
    return found


def _object_of(game: DoomGame) -> int:
    """Return the address of the C++ object, which pybind11 has behind Python's own part."""
    return _read(id(game) + object.__basicsize__)


def _read(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value

"""What a Doom player hears, as an observation.

The engine mixes sound in step with the game, without a sound card, by the library OpenAL Soft, which VizDoom's package
does not contain. Without the library the engine runs and gives silence, and with some versions it crashes, which also
ends the Python process. A process of its own therefore tries it out first.

Sampling rate and form are those of Hegde et al. 2021, "Agents that Listen" (https://arxiv.org/abs/2107.02195): 22,050
Hz in stereo, the whole time of a step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollmill.envs.doom_scenarios import TICS_PER_SECOND, missing_engine
from rollmill.envs.errors import MissingExtra
from rollmill.runtime.sweep import FOLDERS, remove_leftovers

try:
    import vizdoom
    from vizdoom import DoomGame, SamplingRate
except ImportError as error:
    raise missing_engine(error) from error

_SAMPLES_PER_TIC = 22_050 // TICS_PER_SECOND
# Echoes crash older versions of the library, and music would depend on what else is installed.
_ARGUMENTS = "+snd_efx 0 +snd_musicvolume 0"
_TRY_WITHIN_S = 60.0
_IS_SILENT = 3
# The library's dither is one step high.
_AUDIBLE = 100
_EPISODES, _TICS = 10, 60
_TRY = "from rollmill.envs.doom_sound import hear_a_shot; hear_a_shot()"


def sound_space(tics: int) -> spaces.Box:
    """Return the space of what is heard in ``tics`` tics: int16 ``[2, 630 * tics]``, left and right."""
    return spaces.Box(-32768, 32767, (2, _SAMPLES_PER_TIC * tics), np.int16)


def enable_sound(game: DoomGame, tics: int) -> None:
    """Let an engine that has not started give the sound of the last ``tics`` tics with each state."""
    game.set_audio_buffer_enabled(True)
    game.set_audio_sampling_rate(SamplingRate.SR_22050)
    game.set_audio_buffer_size(tics)
    game.add_game_args(_ARGUMENTS)


def heard(audio_buffer: NDArray[np.int16] | None) -> NDArray[np.int16]:
    """Return the engine's samples, ``[S, 2]``, as an observation, ``[2, S]``."""
    assert audio_buffer is not None, "the engine gives sound where it is enabled"
    return np.ascontiguousarray(audio_buffer.T)


@functools.cache
def check_sound() -> None:
    """Try out once, in a process of its own, whether engines give sound.

    Raises:
        MissingExtra: They give silence, or crash.
    """
    began = time.time()
    with tempfile.TemporaryDirectory(prefix=FOLDERS) as folder:
        tried = subprocess.Popen(
            [sys.executable, "-c", _TRY],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, told = tried.communicate(timeout=_TRY_WITHIN_S)
            status = tried.returncode
        except subprocess.TimeoutExpired:
            told, status = f"it did not end within {_TRY_WITHIN_S:.0f} s", -signal.SIGKILL
        finally:
            # An engine would outlive the process that started it.
            if tried.returncode != 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(tried.pid, signal.SIGKILL)
                tried.communicate()
                remove_leftovers(began)
    if status == 0:
        return
    lines = told.strip().splitlines()
    problem = "gives silence" if status == _IS_SILENT else f"fails ({lines[-1] if lines else f'exit status {status}'})"
    raise MissingExtra(
        f"env.vizdoom.sound=True, but VizDoom's engine {problem}: it needs the library OpenAL Soft (libopenal.so.1; "
        "apt install libopenal1), or use env.vizdoom.sound=False"
    )


def hear_a_shot() -> None:
    """Start an engine, shoot, and exit with status 3 if there was nothing to hear."""
    game = DoomGame()
    game.load_config(os.path.join(vizdoom.scenarios_path, "basic.cfg"))
    game.set_window_visible(False)
    enable_sound(game, 4)
    game.init()
    loudest = 0
    # A first shot that hits ends the episode before it is heard.
    for seed in range(_EPISODES):
        game.set_seed(seed)
        game.new_episode()
        while loudest < _AUDIBLE and game.get_episode_time() < _TICS and not game.is_episode_finished():
            loudest = int(np.abs(heard(game.get_state().audio_buffer).astype(np.int32)).max())
            game.make_action([0, 0, 1], 4)
    game.close()
    if loudest < _AUDIBLE:
        sys.exit(_IS_SILENT)

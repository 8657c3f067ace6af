"""DeepMind Lab's levels (``dmlab/<level>``), where ``deepmind_lab`` is installed.

No registry has the package, and it has to be built with Bazel. The adapter was written from its documentation and the
source of its Python module, and is tested with a stand-in module only (docs/dmlab.md).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.scores import DMLAB_30

BUILD_GUIDE = "https://github.com/google-deepmind/lab/blob/master/python/pip_package/README.md"

_DEFAULT_FRAMESKIP = 4
_FOLDER = "contributed/dmlab30/"
_PATH = re.compile(r"\w+(/\w+)+", re.ASCII)


def _levels() -> list[str]:
    """The short names of DMLab-30's levels, both versions of those that differ between training and test."""
    trained = [name.removeprefix("dmlab/") for name in DMLAB_30]
    return sorted({*trained, *(re.sub("_train$", "_test", name) for name in trained)})


def missing_engine(error: ImportError) -> MissingExtra:
    """Make the error for an engine that cannot be imported."""
    return MissingExtra(
        f"DeepMind Lab is not installed ({error}): it is on no package index, and must be built with Bazel "
        f"({BUILD_GUIDE})"
    )


def _check_installed() -> None:
    try:
        import deepmind_lab  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise missing_engine(error) from error


def ids() -> list[str]:
    """Short names of DMLab-30's levels; raises :class:`MissingExtra` without deepmind_lab."""
    _check_installed()
    return _levels()


def check_level(level: str) -> None:
    """Check a level: a short name of DMLab-30's, or the path of a script below the engine's ``game_scripts/levels``.

    The engine itself knows which paths exist.

    Raises:
        UnknownEnvironment: No such level; the message suggests similar names.
        MissingExtra: deepmind_lab is not installed.
    """
    known = ids()
    name = level.removeprefix(_FOLDER)
    if name in known or (name == level and _PATH.fullmatch(level)):
        return
    raise UnknownEnvironment(
        f"DeepMind Lab has no level {level!r}{suggest(name, known)} (give one of DMLab-30, `rollmill envs dmlab`, or "
        "the path of a level's script below game_scripts/levels, such as 'demos/random_maze')"
    )


def path_of(level: str) -> str:
    """The path by which the engine knows a level that :func:`check_level` accepts."""
    return level if "/" in level else _FOLDER + level


def maker(config: EnvConfig) -> Maker:
    """Build ``DmlabEnv`` of a level; ``config.kwargs`` go to its constructor.

    Raises:
        UnknownEnvironment: There is no such level.
        MissingExtra: deepmind_lab is not installed.
    """
    level = config.name.removeprefix("dmlab/")
    check_level(level)
    from rollmill.envs.dmlab_env import DmlabEnv

    options = config.dmlab
    path = path_of(level)
    has_instructions = path.rpartition("/")[2].startswith("language_")
    frameskip = config.frameskip or _DEFAULT_FRAMESKIP
    arguments: dict[str, Any] = {
        "frameskip": frameskip,
        "width": options.width,
        "height": options.height,
        "renderer": options.renderer,
        "extended_actions": options.extended_actions,
        "instructions": has_instructions if options.instructions == "auto" else options.instructions,
        "reward_clip": options.reward_clip,
        "level_cache": options.level_cache,
        "level_seeds": options.level_seeds,
        "dataset_path": options.dataset_path,
        "last_step": config.max_episode_steps,
    }
    return Maker(
        env=partial(DmlabEnv, path, **{**arguments, **config.kwargs}),
        frameskip=frameskip,
        max_episode_steps=config.max_episode_steps,
        time_limit=config.max_episode_steps,
    )

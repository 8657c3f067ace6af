"""PettingZoo's multi-agent environments (``pettingzoo/<family>/<name>``), and those of mpe2 (``mpe/<name>``)."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rollmill.envs import atari_players
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.extras import install_command

_VERSIONED = re.compile(r"\w+_v\d+$")


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"{name} is not installed ({error}): {install_command('pettingzoo')}") from error


def _module_name(id: str) -> str:
    """PettingZoo's registry writes connect_four-v3, its modules and its documentation connect_four_v3."""
    return re.sub(r"-(v\d+)$", r"_\1", id)


def ids() -> list[str]:
    """PettingZoo's environments as ``<family>/<name>``; raises :class:`MissingExtra` without pettingzoo."""
    registered = _package("pettingzoo").aec_registry.keys() | _package("pettingzoo").parallel_registry.keys()
    return sorted(map(_module_name, registered))


def mpe_ids() -> list[str]:
    """Names of mpe2's environments; raises :class:`MissingExtra` without mpe2."""
    modules = pkgutil.iter_modules(_package("mpe2").__path__)
    return sorted(module.name for module in modules if _VERSIONED.match(module.name))


def check_id(name: str) -> None:
    """Raise :class:`UnknownEnvironment` unless there is an environment of this name.

    Args:
        name: ``pettingzoo/<family>/<name>`` or ``mpe/<name>``.
    """
    family, _, id = name.partition("/")
    known = mpe_ids() if family == "mpe" else ids()
    if _module_name(id) not in known:
        if family == "pettingzoo" and id.startswith("mpe/"):
            raise UnknownEnvironment(f"PettingZoo's MPE environments are in the package mpe2 now: use {id!r}")
        whose = "mpe2" if family == "mpe" else "PettingZoo"
        raise UnknownEnvironment(f"{whose} has no environment {id!r}{suggest(id, known) or _listed(id, known)}")


def _listed(id: str, known: Sequence[str]) -> str:
    """``"; there are a, b and c"``: the environments of the same family, or all families where it is unknown."""
    family = id.partition("/")[0] + "/"
    names = [name for name in known if name.startswith(family)] or list(dict.fromkeys(_family(name) for name in known))
    return f"; there are {', '.join(names[:-1])} and {names[-1]}"


def _family(id: str) -> str:
    family, slash, _ = id.partition("/")
    return f"{family}/..." if slash else id


def _of_mpe(id: str) -> Callable[..., Any]:
    make: Callable[..., Any] = importlib.import_module(f"mpe2.{_module_name(id)}").parallel_env
    return make


def _of_pettingzoo(id: str) -> Callable[..., Any]:
    package = _package("pettingzoo")
    name = next(known for known in package.aec_registry | package.parallel_registry if _module_name(known) == id)
    kind = "parallel" if name in package.parallel_registry else "aec"
    return partial(package.make, kind, name)


def _of_atari(make: Callable[..., Any], config: EnvConfig) -> tuple[Callable[[], Any], int]:
    """Return what builds a game with ale-py's ROM, and its frames for each step.

    Screens are shrunk and stacked unless ``kwargs`` choose other observations.
    """
    given = dict(config.kwargs)
    is_plain = "obs_type" in given
    skip = config.frameskip or (1 if is_plain else atari_players.DEFAULT_FRAMESKIP)
    if is_plain and skip > 1:
        raise UnknownEnvironment(
            f"env.frameskip={skip} with env.kwargs.obs_type={given['obs_type']!r}: PettingZoo's own observations come "
            "frame by frame; leave one of the two out"
        )

    def build() -> Any:
        kwargs = {"auto_rom_install_path": atari_players.rom_folder(), **given}
        if is_plain:
            return make(**kwargs)
        return atari_players.AtariPlayers(make(obs_type="grayscale_image", **kwargs), config.atari, skip)

    return build, skip


def maker(config: EnvConfig) -> Maker:
    """Build environments with the parallel interface where there is one, else with the AEC interface.

    Raises:
        UnknownEnvironment: No such environment.
        MissingExtra: pettingzoo, mpe2 or a package of the environment is not installed.
    """
    check_id(config.name)
    family, _, id = config.name.partition("/")
    make = _of_mpe(id) if family == "mpe" else _of_pettingzoo(_module_name(id))
    build_one: Callable[[], Any] = partial(make, **config.kwargs)
    frameskip = config.frameskip or 1
    if id.startswith("atari/"):
        build_one, frameskip = _of_atari(make, config)

    def build() -> Any:
        try:
            return build_one()
        except MissingExtra:
            raise
        except Exception as error:
            # The registry reports a missing package by an exception of its own.
            if not isinstance(error, ImportError) and not isinstance(error.__cause__, ImportError):
                raise
            cause = error if error.__cause__ is None else error.__cause__
            command = f'pip install "pettingzoo[{id.partition("/")[0]}]"'
            raise MissingExtra(f"{config.name} needs a package that is not installed ({cause}): {command}") from error

    limit = config.max_episode_steps
    return Maker(env=build, frameskip=frameskip, max_episode_steps=limit, time_limit=limit)

"""Detection of configurations that run code: all but built-in environments with numeric arguments.

A run's ``config.json`` names the environment, its arguments and the modules to import, and so can run code when a user
evaluates or resumes the run. Rollmill therefore signs it (see :mod:`rollmill.runtime.signed_files`). A file without a
signature of this user's key is read as data, and only built-in environments are built from it.
"""

from __future__ import annotations

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import FAMILIES
from rollmill.envs.registry import registrations
from rollmill.envs.suites import FAMILY
from rollmill.envs.wrapper_calls import parse_wrappers

INSTALLED_WADS = (None, "arena", "paper")
"""Maps of the installed packages."""
# Packages whose ids in Gymnasium's registry are trusted; ids of others may come from anywhere.
_OWN_ENTRY_POINTS = ("gymnasium.envs.", "ale_py.", "minigrid.")


def named_code(env: EnvConfig) -> str:
    """Describe the code that an environment's configuration runs; empty for built-in environments.

    A built-in environment with numeric arguments, and without a folder of maps, runs only installed packages. Text is
    not accepted, because for some environments it is a path, a module or a class.
    """
    if env.imports:
        return f"it imports {', '.join(env.imports)} (env.imports), which runs code"
    for key, value in env.kwargs.items():
        if value is not None and not isinstance(value, bool | int | float):
            return (
                f"it gives the environment {env.name!r} the argument {key}={value!r} (env.kwargs), which may run code"
            )
    if reason := wrapping_code(env.wrappers):
        return reason
    for name in env.names:
        for key, place in _places_of(name, env).items():
            if place is not None:
                return f"it gives the environment {name!r} files from {place!r} ({key}), which may hold anything"
        if not is_built_in(name):
            return f"it names the environment {name!r}, which is not a built-in one (env.name) and runs code"
    return ""


def _places_of(name: str, env: EnvConfig) -> dict[str, str | None]:
    """Return the settings that name files for an environment's engine, which is native code, with their values."""
    if name.startswith("dmlab/"):
        return {"env.dmlab.level_cache": env.dmlab.level_cache, "env.dmlab.dataset_path": env.dmlab.dataset_path}
    if name.startswith("vizdoom/") and env.vizdoom.wad not in INSTALLED_WADS:
        return {"env.vizdoom.wad": env.vizdoom.wad}
    return {}


def wrapping_code(wrappers: str) -> str:
    """Describe the code that ``env.wrappers`` runs; empty for Gymnasium's own with numeric arguments."""
    for call in parse_wrappers(wrappers):
        if call.is_own or not all(map(_is_numeric, (*call.args, *call.kwargs.values()))):
            return f"it wraps the environment in {call.name} (env.wrappers), which may run code or write files"
    return ""


def _is_numeric(value: object) -> bool:
    """Whether a value consists of numbers alone."""
    if isinstance(value, dict):
        return all(map(_is_numeric, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_is_numeric, value))
    return value is None or isinstance(value, bool | int | float)


def is_built_in(name: str) -> bool:
    """Whether a name refers to an environment of a trusted package and imports nothing else."""
    if name.startswith(f"{FAMILY}/"):
        return True
    if ":" in name or any(entry.name == name for entry in registrations()):
        return False
    family, slash, id = name.partition("/")
    if slash and family in FAMILIES and family not in ("gym", "mujoco"):
        return True  # These families look up names in their packages.
    from rollmill.envs.errors import RollmillEnvError
    from rollmill.envs.gym import find_spec

    try:
        spec = find_spec(id if slash and family in FAMILIES else name)
    except RollmillEnvError:
        return False
    entry_points = [point for point in (spec.entry_point, spec.vector_entry_point) if point is not None]
    return bool(entry_points) and all(
        isinstance(point, str) and point.startswith(_OWN_ENTRY_POINTS) for point in entry_points
    )

"""Which environments' configurations name code: all but those of built-in environments with numbers for arguments.

A run's ``config.json`` names the environment, what it is built with and what is imported first, all of which is code to
the user who evaluates or resumes the run. Rollmill therefore signs it (see :mod:`rollmill.runtime.signed_files`). What
is not signed with this user's key is read as data; an environment is built of it only if it is one of the built-in
ones.
"""

from __future__ import annotations

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import FAMILIES
from rollmill.envs.registry import registrations

__all__ = ["named_code"]

# Whose ids Gymnasium's registry may have from packages that Rollmill knows; ids of others may be anybody's.
_OWN_ENTRY_POINTS = ("gymnasium.envs.", "ale_py.", "minigrid.")


def named_code(env: EnvConfig) -> str:
    """What of an environment's configuration is code, in words; empty where there is nothing but built-in environments.

    A built-in environment with numbers for arguments runs the code of installed packages alone. Text is not let pass,
    because for some environments it is a path, a module or a class.
    """
    if env.imports:
        return f"it imports {', '.join(env.imports)} (env.imports), which runs code"
    for key, value in env.kwargs.items():
        if value is not None and not isinstance(value, bool | int | float):
            return (
                f"it gives the environment {env.name!r} the argument {key}={value!r} (env.kwargs), which may run code"
            )
    if not _is_built_in(env.name):
        return f"it names the environment {env.name!r}, which is not a built-in one (env.name) and runs code"
    return ""


def _is_built_in(name: str) -> bool:
    """Whether a name leads to an environment of the packages that Rollmill knows, and imports nothing else."""
    if ":" in name or any(entry.name == name for entry in registrations()):
        return False
    family, slash, id = name.partition("/")
    if slash and family in FAMILIES and family not in ("gym", "mujoco"):
        return True  # These families look their names up in the lists of their packages.
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

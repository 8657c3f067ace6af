"""Environments of Gymnasium's registry (``gym/<id>``, ``mujoco/<id>`` or a bare id)."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from rollmill.envs import atari
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.envs.module_names import explain
from rollmill.envs.registry import registrations
from rollmill.envs.user_code import NoSuchModuleError, import_user_code
from rollmill.extras import install_command

_OWN = "gymnasium.envs."
_ALE = "ale_py.env:AtariEnv"

# The extra (see rollmill.extras) that provides a package in an entry point.
_EXTRAS = {
    "mujoco": "mujoco",
    "gymnasium.envs.mujoco": "mujoco",
    "Box2D": "box2d",
    "box2d": "box2d",
    "ale_py": "atari",
    "minigrid": "minigrid",
    "vizdoom": "vizdoom",
}
# Packages needed by Gymnasium's own environments, by kind: module name and package name.
_PACKAGES = {"mujoco": ("mujoco", "MuJoCo"), "box2d": ("Box2D", "Box2D")}


def find_spec(id: str) -> GymSpec:
    """Find Gymnasium's spec of an id; imports a module prefix (``module:id``).

    Raises:
        UnknownEnvironment: Not registered; suggests similar ids.
    """
    module, colon, name = id.partition(":")
    if colon and id not in gymnasium.registry:
        try:
            import_user_code(module)
            return find_spec(name)
        except (NoSuchModuleError, UnknownEnvironment) as error:
            raise UnknownEnvironment(explain(id) or str(error)) from error
    try:
        return gymnasium.spec(id)
    except gymnasium.error.Error as error:
        namespace = id.partition("/")[0]
        if namespace == "ALE":
            try:
                importlib.import_module("ale_py")
                return gymnasium.spec(id)
            except (ImportError, gymnasium.error.Error):
                pass
        near = suggest(id, [*gymnasium.registry, *(entry.name for entry in registrations())])
        raise UnknownEnvironment(
            f"Gymnasium has no environment {id!r} (environments of your own are registered with rollmill.register_env, "
            f"in a module given with --import){near}"
        ) from error


def is_registered(id: str) -> bool:
    """Whether Gymnasium's registry has the id."""
    try:
        find_spec(id)
    except UnknownEnvironment:
        return False
    return True


def is_registered_by_import(name: str) -> bool:
    """Whether a ``gym/<id>`` was registered by a package other than Gymnasium."""
    entry = gymnasium.registry.get(name.partition("/")[2])
    if entry is None or entry.entry_point is None:
        return False
    place = entry.entry_point if isinstance(entry.entry_point, str) else str(entry.entry_point.__module__)
    return place.partition(":")[0].partition(".")[0] not in {"gymnasium", *_EXTRAS}


def kind(id: str) -> str:
    """``"classic_control"``, ``"mujoco"``, ... for Gymnasium's own environments, ``""`` for others.

    Raises:
        UnknownEnvironment: Not registered; suggests similar ids.
    """
    entry = find_spec(id).entry_point
    if isinstance(entry, str) and entry.startswith(_OWN):
        return entry.removeprefix(_OWN).partition(".")[0].partition(":")[0]
    return ""


def _own_ids(kinds: tuple[str, ...]) -> list[str]:
    # Newest versions only; older ones exist to reproduce old results, and can still be named.
    newest: dict[tuple[str | None, str], GymSpec] = {}
    for spec in gymnasium.registry.values():
        if isinstance(spec.entry_point, str) and any(spec.entry_point.startswith(_OWN + k) for k in kinds):
            old = newest.get((spec.namespace, spec.name))
            if old is None or (spec.version or 0) > (old.version or 0):
                newest[spec.namespace, spec.name] = spec
    return sorted(spec.id for spec in newest.values())


def check_installed(kind: str) -> None:
    """Check that the package behind a kind of Gymnasium's own environments is installed (see :func:`kind`).

    Raises:
        MissingExtra: It is not installed.
    """
    if not _is_installed(kind):
        raise MissingExtra(f"{_PACKAGES[kind][1]} is not installed: {install_command(kind)}")


def _is_installed(kind: str) -> bool:
    package = _PACKAGES.get(kind)
    return package is None or importlib.util.find_spec(package[0]) is not None


def ids() -> list[str]:
    """Newest versions of Gymnasium's installed ids, without MuJoCo's."""
    kinds = ("classic_control", "box2d", "toy_text")
    return _own_ids(tuple(kind for kind in kinds if _is_installed(kind)))


def mujoco_ids() -> list[str]:
    """Newest versions of Gymnasium's MuJoCo ids.

    Raises:
        MissingExtra: mujoco is not installed.
    """
    check_installed("mujoco")
    return _own_ids(("mujoco",))


def bare(env: Any) -> Any:
    """Remove wrappers that a group replaces: ``TimeLimit`` and ``OrderEnforcing``.

    Both are removed if they are the outermost wrappers, as ``gymnasium.make`` adds them; ``PythonGroup`` enforces the
    same limit (step ``limit`` of an episode is ``truncated``). Gymnasium's own environments also assert that each
    action is in its space, which costs as much as CartPole's physics. ``ActionCodec`` keeps actions in range, so the
    action spaces of these environments (and no others) answer yes.
    """
    if type(env) is TimeLimit and type(env.env) is OrderEnforcing:
        env = env.env
    if type(env) is OrderEnforcing:
        env = env.env
    if type(env).__module__.startswith(_OWN) and isinstance(env, gymnasium.Env):
        setattr(env.action_space, "contains", _yes)  # noqa: B010 - an instance attribute, which the type forbids
    return env


def _yes(_: Any) -> bool:
    return True


def maker(config: EnvConfig) -> Maker:
    """Build environments with ``gymnasium.make`` without its checkers, or an id's ``vector_entry_point``.

    ``vector="auto"`` prefers Python environments, because a native vector may give other observations than the id's
    environment (ALE's does) and share one generator among its rows.

    Raises:
        UnknownEnvironment: Not registered; suggests similar ids.
        MissingExtra: The simulator is not installed.
    """
    family, _, id = config.name.partition("/")
    if family not in ("gym", "mujoco"):
        id = config.name
    spec = find_spec(id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    limit = config.max_episode_steps or spec.max_episode_steps
    skip = config.frameskip or _own_frameskip({**spec.kwargs, **kwargs})

    def build() -> Any:
        if kind(id) == "mujoco":
            _log_mujoco_warnings()
        try:
            env = gymnasium.make(spec, disable_env_checker=True, max_episode_steps=config.max_episode_steps, **kwargs)
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise _missing(id, spec, error) from error
        if spec.entry_point == _ALE and skip > 1:
            # It declares 30 for any number of skipped frames.
            env.unwrapped.metadata = {**env.metadata, "render_fps": atari.FRAMES_PER_SECOND / skip}
        return env

    def vector(num_envs: int, num_threads: int, seeds: Sequence[int]) -> Any:
        options = dict(kwargs)
        if config.max_episode_steps is not None:
            options["max_episode_steps"] = config.max_episode_steps
        try:
            return gymnasium.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise _missing(id, spec, error) from error

    native = spec.vector_entry_point is not None
    if spec.entry_point is None:
        return Maker(
            env=None,
            vector=vector,
            prefer_vector=True,
            frameskip=skip,
            max_episode_steps=limit,
            keeps_group_size=True,
        )
    return Maker(
        env=build,
        bare_env=lambda: bare(build()),
        vector=vector if native else None,
        frameskip=skip,
        max_episode_steps=limit,
        time_limit=limit,
        keeps_group_size=kind(id) == "",
    )


def _own_frameskip(kwargs: Mapping[str, Any]) -> int:
    """Frames per step of an id that skips frames by an argument, such as ALE's; 1 for all others."""
    skip = kwargs.get("frameskip")
    return skip if isinstance(skip, int) and skip >= 1 else 1


def _log_mujoco_warnings() -> None:
    """Log MuJoCo's warnings, each of them once, whatever the simulated time.

    MuJoCo prints them for every environment that is built, and writes MUJOCO_LOG.TXT into the working directory.
    """
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError:
        return  # Building the environment raises.
    if mujoco.get_mju_user_warning() is not None:
        return  # Already replaced, by the user or by us.
    logged: set[str] = set()

    def log(text: str) -> None:
        if (what := text.partition(" Time = ")[0]) not in logged:
            logged.add(what)
            logging.getLogger(__name__).warning("MuJoCo: %s", text)

    mujoco.set_mju_user_warning(log)


def _missing(id: str, spec: GymSpec, error: Exception) -> MissingExtra:
    text = f"{getattr(error, 'name', '') or ''} {error} {spec.entry_point}"
    extra = next((extra for key, extra in _EXTRAS.items() if key in text), None)
    advice = install_command(extra) if extra else "install what it names"
    logging.getLogger(__name__).debug("%s is missing", id, exc_info=error)
    return MissingExtra(f"{id} needs a package that is not installed ({error}): {advice}")

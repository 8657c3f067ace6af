"""What a suite is: environments, and methods to train them with. The built-in ones, and files.

A file has the form of the built-in ones, as TOML::

    environments = ["gym/CartPole-v1", "gym/Acrobot-v1"]
    seeds = 2

    [settings]
    total_steps = 100_000

    [settings_of."gym/Acrobot-v1"]
    total_steps = 200_000

    [methods.small]
    model.mlp_sizes = [32, 32]

    [methods.impala]
    algo = "impala"
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollmill.campaigns.jobs import CampaignError
from rollmill.envs import suites
from rollmill.settings.config import Config
from rollmill.settings.options import is_entry, quote_entries
from rollmill.settings.value_checks import check_integer

# SAC's five (Haarnoja et al. 2018, arXiv:1801.01290, figure 1), in today's versions.
_MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
# Gymnasium's classic control.
_CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
_WRAPPERS: Final = "cleanba-wrappers"
_KEYS = ("environments", "algo", "protocol", "seeds", "settings", "settings_of", "methods")


@dataclass(frozen=True)
class Method:
    """A way to train, which a suite applies to all of its environments.

    Attributes:
        name: Its name in the report; empty for the only one of a suite, which is named by its algorithm.
        algo: As for ``rollmill train``; None for the suite's or the preset's.
        protocol: Likewise.
        settings: Key -> value.
    """

    name: str = ""
    algo: str | None = None
    protocol: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Environments and methods.

    Attributes:
        name: Its name.
        environments: Names of presets.
        methods: At least one.
        settings: Key -> value, for all.
        settings_of: Environment -> key -> value.
        seeds: Runs of each method in each environment, if the caller does not say; None for one.
    """

    name: str
    environments: tuple[str, ...]
    methods: tuple[Method, ...] = (Method(),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int | None = None


def suite_names() -> list[str]:
    """Names of the built-in suites."""
    return [*suites.names(), "mujoco", "classic", _WRAPPERS]


def find_suite(name: str) -> Suite:
    """Return a built-in suite, or read that of a file.

    Args:
        name: A name of :func:`suite_names`, or the path of a TOML file.

    Raises:
        CampaignError: There is neither, or the file is not valid.
        MissingExtra: A package that lists the environments is not installed.
    """
    if name.endswith(".toml"):
        return read_suite(Path(name))
    name = name.removeprefix(f"{suites.FAMILY}/")
    if name in suites.names():
        return Suite(name, suites.tasks_of(f"{suites.FAMILY}/{name}"))
    if name == "mujoco":
        return Suite(name, tuple(f"mujoco/{id}" for id in _MUJOCO))
    if name == "classic":
        return Suite(name, tuple(f"gym/{id}" for id in _CLASSIC))
    if name == _WRAPPERS:
        return _wrapper_ablation()
    close = difflib.get_close_matches(name, suite_names(), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise CampaignError(
        f"there is no suite {name!r}{hint}: choose one of {', '.join(suite_names())}, or give a file that ends in "
        ".toml."
    )


def _wrapper_ablation() -> Suite:
    """The ablation of Atari's wrappers around Cleanba's IMPALA (Huang et al. 2023, arXiv:2310.00036, appendix D).

    ``envpool`` is what the paper trains with: the protocol of Machado et al. (2018), and FIRE pressed at a reset, which
    EnvPool does by default. ``gym`` is the wrapper of moolib, which the appendix compares it with, with the same sticky
    actions and action set: up to 30 no-ops before the first frame, and no FIRE. ``impala`` is the third wrapper in
    Cleanba's repository, that of IMPALA's paper. moolib shrinks frames bilinearly; here all have area averages.
    """
    network = {"model.encoder": "impala", "total_steps": 50_000_000}
    return Suite(
        _WRAPPERS,
        suites.tasks_of(f"{suites.FAMILY}/atari57"),
        methods=(
            Method("envpool", "impala", "machado", {"env.atari.fire_reset": True}),
            Method("gym", "impala", "machado", {"env.atari.noop_max": 30}),
            Method(
                "impala",
                "impala",
                None,
                {
                    "env.atari.sticky_actions": 0.0,
                    "env.atari.full_action_space": False,
                    "env.atari.life_loss": True,
                    "env.atari.noop_max": 30,
                    "env.atari.fire_reset": True,
                },
            ),
        ),
        settings=network,
    )


def read_suite(path: Path) -> Suite:
    """Read a suite's file.

    Raises:
        CampaignError: It cannot be read, or is not a suite.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror}): give a TOML file, or a suite's name."
        ) from error
    except ValueError as error:
        raise CampaignError(f"{path} is not a TOML file ({error}).") from error
    if unknown := [key for key in content if key not in _KEYS]:
        raise CampaignError(f"{path} has {unknown[0]!r}: a suite has {', '.join(_KEYS)}.")
    environments = content.get("environments")
    if not _are_names(environments):
        raise CampaignError(f"{path} has environments = {environments!r}: give a list of names, each once.")
    assert isinstance(environments, list)
    if (seeds := content.get("seeds")) is not None:
        try:
            check_integer(f"{path}: seeds", seeds, 1)
        except ValueError as error:
            raise CampaignError(str(error)) from error
    settings_of = {name: flat(table) for name, table in _table(path, content, "settings_of").items()}
    if foreign := [name for name in settings_of if name not in environments]:
        raise CampaignError(f"{path} has settings_of {foreign[0]!r}, which is not one of its environments.")
    methods = tuple(
        Method(
            name,
            _choice(path, table, "algo") or _choice(path, content, "algo"),
            _choice(path, table, "protocol") or _choice(path, content, "protocol"),
            flat({key: value for key, value in table.items() if key not in ("algo", "protocol")}),
        )
        for name, table in _table(path, content, "methods").items()
    )
    if wrong := [method.name for method in methods if not method.name or "=" in method.name]:
        raise CampaignError(f"{path} has the method {wrong[0]!r}: give it a name without '='.")
    return Suite(
        path.stem,
        tuple(environments),
        methods or (Method("", _choice(path, content, "algo"), _choice(path, content, "protocol")),),
        flat(_table(path, content, "settings")),
        settings_of,
        seeds,
    )


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key, of nested tables; entries of a mapping such as ``env.kwargs`` may be tables."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        key = prefix + name
        # Those of a policy are settings themselves.
        is_value = is_entry(Config, key) and not key.startswith("policy.")
        if isinstance(value, Mapping) and not is_value:
            found |= flat(value, f"{key}.")
        else:
            found |= quote_entries(Config, {key: value})
    return found


def _table(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, Mapping) or (
        key != "settings" and not all(isinstance(v, Mapping) for v in table.values())
    ):
        raise CampaignError(f"{path} has {key} = {table!r}: give a table [{key}] of settings.")
    return table


def _choice(path: Path, table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise CampaignError(f"{path} has {key} = {value!r}: give a name.")
    return value


def _are_names(names: object) -> bool:
    return (
        isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) and name for name in names)
        and len(set(names)) == len(names)
    )

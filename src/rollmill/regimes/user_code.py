"""The user's registrations in this process, for the processes of a run."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rollmill.envs.config import EnvConfig
from rollmill.envs.registry import Registration, install, registrations
from rollmill.envs.user_code import import_user_code, let_interpreters_in
from rollmill.runtime.shipping import Definition, SealedDefinition, is_main_importable, require_sendable
from rollmill.settings.config import Config
from rollmill.settings.options import flatten
from rollmill.tracking.registry import TRACKERS

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvCreator

_ENVIRONMENT, _GYMNASIUM_ID = "environment", "Gymnasium environment"
# Kind -> its registry.
_REGISTRIES = {
    "remover": ("rollmill.storage.removers", "REMOVERS"),
    "admission": ("rollmill.learning.admission", "ADMISSIONS"),
    "objective": ("rollmill.pbt.objectives", "OBJECTIVES"),
    "assignment": ("rollmill.rollout.assignment", "ASSIGNMENTS"),
    "matchmaking": ("rollmill.learning.matchmaking", "MATCHMAKING"),
    "model": ("rollmill.models.registry", "MODELS"),
    "encoder": ("rollmill.models.observation", "ENCODERS"),
    "algorithm": ("rollmill.algorithms.registry", "ALGORITHMS"),
    "player": ("rollmill.evaluation.players", "PLAYERS"),
}
_NETWORKS = ("model", "encoder", "algorithm")


@dataclass(frozen=True)
class UserCode:
    """The user's registrations, which make names resolve in a child as in the parent.

    Attributes:
        modules: Modules of ``--import``: importing them again registers their names.
        definitions: Further registrations, of a script, a notebook or a prompt.
    """

    modules: tuple[str, ...]
    definitions: tuple[Definition | SealedDefinition, ...]

    @classmethod
    def of_this_process(cls, config: Config) -> UserCode:
        """Collect the current registrations.

        Raises:
            UnsendableError: An object that the configuration names cannot be sent to a process.
        """
        definitions = tuple(_definitions(config))
        for each in definitions:
            if each.is_needed:
                require_sendable(each.kind, each.name, each.value)
            else:
                each.seal_unused()
        return cls(config.env.imports, definitions)

    def install(self, *, networks: bool = True) -> None:
        """Register everything in this process.

        Args:
            networks: Whether to register models, encoders and algorithms, too, which import torch.
        """
        let_interpreters_in()
        for module in self.modules:
            import_user_code(module)
        for definition in self.definitions:
            assert isinstance(definition, SealedDefinition)
            if networks or definition.kind not in _NETWORKS:
                _install(definition)


def names_definitions(config: Config) -> bool:
    """Whether a configuration names anything that the user registered with Rollmill in this process."""
    needed = any(each.is_needed and each.kind != _GYMNASIUM_ID for each in _definitions(config))
    return needed or any(map(TRACKERS.is_registered, config.tracking.names))


def is_registered_player(name: str) -> bool:
    """Whether the user registered a player of this name in this process."""
    module, attribute = _REGISTRIES["player"]
    loaded = sys.modules.get(module)
    return loaded is not None and name in getattr(loaded, attribute).registered()


def uses_registrations(config: Config) -> bool:
    """As :func:`names_definitions`, or an id of Gymnasium's that a module other than its own has registered."""
    gym = sys.modules.get("rollmill.envs.gym")  # It imports Gymnasium.
    return names_definitions(config) or (
        gym is not None
        and any(name.startswith("gym/") and gym.is_registered_by_import(name) for name in config.env.names)
    )


def _definitions(config: Config) -> Iterator[Definition]:
    for entry in registrations():
        yield Definition(_ENVIRONMENT, entry.name, entry, is_needed=entry.name in config.env.names)
    for task in range(len(config.env.names)):
        yield from _gymnasium_ids(config.env.of_task(task))
    settings = flatten(config)
    used: dict[str, Collection[object]] = {
        "remover": [settings.get("replay.remover")],
        "model": [policy.model.model for policy in config.policies],
        "encoder": [policy.model.encoder for policy in config.policies],
        "algorithm": [policy.algorithm_name for policy in config.policies],
        "admission": [settings.get("admission")],
        "objective": [config.pbt.objective],
        "assignment": [config.population.assignment],
        "matchmaking": [config.population.matchmaking],
        "player": [*config.eval_against, *(player for _, player in config.population.named_guests)],
    }
    for kind, (module, attribute) in _REGISTRIES.items():
        # A registry that is not loaded is empty; loading it may import torch.
        if (loaded := sys.modules.get(module)) is not None:
            for name, factory in getattr(loaded, attribute).registered().items():
                yield Definition(kind, name, factory, is_needed=name in used[kind])


def _gymnasium_ids(config: EnvConfig) -> Iterator[Definition]:
    """The trained id, if a notebook or a prompt registered it, directly or by an import."""
    if is_main_importable() or "gymnasium" not in sys.modules:
        return
    from gymnasium.envs.registration import load_env_creator, registry

    family, slash, id = config.name.partition("/")
    name = id if slash and family in ("gym", "mujoco") else config.name
    if name not in registry:
        return
    spec = copy.copy(registry[name])
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = cast("EnvCreator", load_env_creator(spec.entry_point))
    yield Definition(_GYMNASIUM_ID, name, spec, is_needed=True)


def _install(definition: SealedDefinition) -> None:
    value = definition.open()
    if value is None:
        return
    if definition.kind == _ENVIRONMENT:
        assert isinstance(value, Registration)
        install([value])
    elif definition.kind == _GYMNASIUM_ID:
        import gymnasium

        gymnasium.registry.setdefault(definition.name, value)
    else:
        module, attribute = _REGISTRIES[definition.kind]
        getattr(importlib.import_module(module), attribute).install(definition.name, value)

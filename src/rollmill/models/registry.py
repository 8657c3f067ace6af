"""Models by name, and the door for a user's own models and encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.observation import (
    UnknownModelError,
    is_known_encoder,
    is_registered_encoder,
    register_encoder,
    unknown_name,
)
from rollmill.runtime.definitions import is_same_definition
from rollmill.specs import ActionSpec, ArraySpec

__all__ = [
    "ModelFactory",
    "UnknownModelError",
    "WrongModelError",
    "install_model",
    "is_known",
    "make_model",
    "register_encoder",
    "register_model",
    "registered_models",
]

ModelFactory = Callable[[Mapping[str, ArraySpec], ActionSpec, ModelConfig], ActorCritic]

_BUILT_IN = "actor_critic"
_models: dict[str, ModelFactory] = {_BUILT_IN: ActorCritic}


class WrongModelError(TypeError):
    """The factory of a registered model returned something else."""


def register_model(name: str, factory: ModelFactory) -> None:
    """Make ``ModelConfig(model=name)`` build ``factory(observation, action, config)``.

    The result must be an :class:`rollmill.models.actor_critic.ActorCritic`; a subclass may override whatever it likes,
    ``forward`` and ``unroll`` included. Every process that builds models must register it, so do it in a module that is
    imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: A subclass, or a function that gives an instance of one.

    Raises:
        ValueError: The name is taken by another factory.
    """
    if not is_same_definition(_models.get(name, factory), factory):
        raise ValueError(f"model {name!r} exists already; choose a name other than {', '.join(_models)}")
    _models[name] = factory


def is_users(config: ModelConfig) -> bool:
    """Whether this configuration names a model or an encoder that was registered here, and is none of ours."""
    return config.model in _models.keys() - {_BUILT_IN} or is_registered_encoder(config.encoder)


def is_known(config: ModelConfig) -> bool:
    """Whether a model and an encoder of these names are built in or registered."""
    return config.model in _models and is_known_encoder(config.encoder)


def registered_models() -> dict[str, ModelFactory]:
    """What :func:`register_model` was given in this process, by name."""
    return {name: factory for name, factory in _models.items() if name != _BUILT_IN}


def install_model(name: str, factory: ModelFactory) -> None:
    """Take over a registration of the process that started this one, unless this one has the name already."""
    _models.setdefault(name, factory)


def make_model(observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> ActorCritic:
    """The model that ``config`` names.

    Args:
        observation: Name -> spec.
        action: The environment's; the model gets it as slots hold it.
        config: What network it is.

    Raises:
        UnknownModelError: Nobody registered ``config.model`` or ``config.encoder``.
        WrongModelError: The registered factory gave something else than an ``ActorCritic``.
        ValueError: The configuration does not fit the specs.
    """
    if config.model not in _models:
        raise unknown_name("model", config.model, tuple(_models), "register_model")
    model = _models[config.model](observation, config.stored_action(action), config)
    if not isinstance(model, ActorCritic):
        raise WrongModelError(
            f"model {config.model!r} gave a {type(model).__name__}; it must give an instance of a subclass of "
            "rollmill.models.actor_critic.ActorCritic"
        )
    return model

"""Registry of models, including users' own models and encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ACTOR_CRITIC, ModelConfig
from rollmill.models.observation import ENCODERS, UnknownModelError
from rollmill.runtime.definitions import Registry
from rollmill.specs import ActionSpec, ArraySpec

ModelFactory = Callable[[Mapping[str, ArraySpec], ActionSpec, ModelConfig], ActorCritic]

MODELS: Registry[ModelFactory] = Registry(
    "model", {ACTOR_CRITIC: ActorCritic}, register="register_model", error=UnknownModelError
)


class WrongModelError(TypeError):
    """The factory of a registered model did not return an ``ActorCritic``."""


def register_model(name: str, factory: ModelFactory) -> None:
    """Make ``ModelConfig(model=name)`` build ``factory(observation, action, config)``.

    The result must be an :class:`rollmill.models.actor_critic.ActorCritic`; a subclass may override any method,
    ``forward`` and ``unroll`` included. Every process that builds models must register it, so register it in a module
    that is imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: A subclass, or a function that returns an instance of one.

    Raises:
        ValueError: The name is taken by another factory.
    """
    MODELS.register(name, factory)


def is_known(config: ModelConfig) -> bool:
    """Whether the model and the encoder that ``config`` names are built in or registered."""
    return config.model in MODELS and config.encoder in ENCODERS


def make_model(observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig) -> ActorCritic:
    """Build the model that ``config`` names.

    Args:
        observation: Name -> spec.
        action: The environment's; the model gets it in the form that slots hold.
        config: The network's configuration.

    Raises:
        UnknownModelError: ``config.model`` or ``config.encoder`` is not registered.
        WrongModelError: The registered factory did not return an ``ActorCritic``.
        ValueError: The configuration does not fit the specs.
    """
    model = MODELS.find(config.model)(observation, config.stored_action(action), config)
    if not isinstance(model, ActorCritic):
        raise WrongModelError(
            f"model {config.model!r} gave a {type(model).__name__}; it must give an instance of a subclass of "
            "rollmill.models.actor_critic.ActorCritic"
        )
    return model

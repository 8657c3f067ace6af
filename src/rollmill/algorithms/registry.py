'''Registry of algorithms, including users' own.

An algorithm is a class that acts and has a loss; most change the loss of a built-in one. A complete example, Munchausen
DQN (Vieillard et al. 2020, https://arxiv.org/abs/2007.14430, equation 2)::

    import rollmill
    import torch
    from rollmill.algorithms.batches import TransitionBatch
    from rollmill.algorithms.dqn import DQN
    from torch import Tensor


    class MunchausenDQN(DQN):
        """DQN whose target adds the scaled log-probability of the taken action."""

        ALPHA, TAU, LOWEST = 0.9, 0.03, -1.0

        def target(self, batch: TransitionBatch) -> Tensor:
            with torch.no_grad():
                q = self.values(self.target_network, batch.observation, batch.action_mask)
                next_q = self.values(self.target_network, batch.next_observation, batch.next_action_mask)
                log_policy = (q / self.TAU).log_softmax(-1)
                taken = log_policy.gather(-1, batch.discrete.long().unsqueeze(-1)).squeeze(-1)
                next_policy = (next_q / self.TAU).log_softmax(-1)
                soft = (next_policy.exp() * (next_q - self.TAU * next_policy)).sum(-1)
                bonus = self.ALPHA * (self.TAU * taken).clamp(self.LOWEST, 0.0)
                return batch.reward + bonus.mean(-1) + batch.discount * soft.mean(-1)


    rollmill.register_algorithm("munchausen_dqn", MunchausenDQN)

and then ``rollmill.train("gym/CartPole-v1", algo="munchausen_dqn")``.
'''

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, overload

from rollmill.algorithms.base import Algorithm, OffPolicyAlgorithm
from rollmill.algorithms.config import AlgorithmConfig
from rollmill.algorithms.discrete_sac import DiscreteSAC
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import OffPolicyConfig, QLearningConfig, SoftConfig
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.sac import SAC
from rollmill.algorithms.td3 import DDPG, TD3
from rollmill.models.config import ModelConfig
from rollmill.runtime.definitions import Registry
from rollmill.specs import ActionSpec, ArraySpec

AlgorithmFactory = Callable[[Mapping[str, ArraySpec], ActionSpec, ModelConfig, Any], Algorithm]


class UnknownAlgorithmError(ValueError):
    """The name of an algorithm is not registered."""


def _deep_q_learning(
    observation: Mapping[str, ArraySpec], action: ActionSpec, model: ModelConfig, config: QLearningConfig
) -> OffPolicyAlgorithm:
    """Build DQN from single transitions, or from sequences if the network has a core."""
    kind = DQN if model.core == "none" else RecurrentDQN
    return kind(observation, action, model, config)


def _soft_actor_critic(
    observation: Mapping[str, ArraySpec], action: ActionSpec, model: ModelConfig, config: SoftConfig
) -> OffPolicyAlgorithm:
    """Build SAC for choices if there are only choices, else SAC for a Box, which checks the action."""
    kind = DiscreteSAC if action.num_discrete and not action.num_continuous else SAC
    return kind(observation, action, model, config)


_BUILT_IN: Mapping[str, AlgorithmFactory] = {
    "dqn": _deep_q_learning,
    "ddpg": DDPG,
    "td3": TD3,
    "sac": _soft_actor_critic,
    "ppo": PPO,
}
ALGORITHMS: Registry[AlgorithmFactory] = Registry(
    "algorithm",
    _BUILT_IN,
    register="register_algorithm",
    error=UnknownAlgorithmError,
)
_on_policy = {"ppo"}


def register_algorithm(name: str, factory: AlgorithmFactory, *, is_on_policy: bool | None = None) -> None:
    """Make ``--algo name`` build ``factory(observation, action, model_config, config)``.

    Every process that builds algorithms must register it, so register it in a module that is imported everywhere
    (``--import``).

    Args:
        name: A new name.
        factory: A subclass of :class:`rollmill.algorithms.on_policy.OnPolicyAlgorithm` or of
            :class:`rollmill.algorithms.base.OffPolicyAlgorithm`, or a function that returns an instance of one.
        is_on_policy: For a function, whether it returns an on-policy algorithm; for a class it is inferred.

    Raises:
        ValueError: The name is taken by another factory, or differs from a built-in one in its case alone.
    """
    if name.lower() in _BUILT_IN and name not in _BUILT_IN:
        raise ValueError(f"algorithm {name!r} exists already, as {name.lower()!r}; choose another name")
    ALGORITHMS.register(name, factory)
    if is_on_policy is None:
        is_on_policy = inspect.isclass(factory) and issubclass(factory, OnPolicyAlgorithm)
    (_on_policy.add if is_on_policy else _on_policy.discard)(name)


def is_on_policy_algorithm(name: str) -> bool:
    """Whether the named algorithm is on-policy, rather than learning from a replay."""
    return name in _on_policy


@overload
def make_algorithm(
    observation: Mapping[str, ArraySpec], action: ActionSpec, model: ModelConfig, config: OffPolicyConfig
) -> OffPolicyAlgorithm: ...
@overload
def make_algorithm(
    observation: Mapping[str, ArraySpec], action: ActionSpec, model: ModelConfig, config: OnPolicyConfig
) -> OnPolicyAlgorithm: ...
def make_algorithm(
    observation: Mapping[str, ArraySpec],
    action: ActionSpec,
    model: ModelConfig,
    config: OffPolicyConfig | OnPolicyConfig,
) -> Algorithm:
    """Build the algorithm that ``config`` names.

    Args:
        observation: Name -> spec.
        action: The action of one row: in the unit box for off-policy algorithms, else the environment's.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Raises:
        UnknownAlgorithmError: ``config.algorithm`` is not registered.
        TypeError: The registered factory did not return an algorithm of this kind.
        ValueError: The configuration or the algorithm does not fit the specs, or the run's batches and rewards.
    """
    name = config.algorithm
    algorithm = ALGORITHMS.find(name)(observation, action, model, config)
    wanted = OnPolicyAlgorithm if isinstance(config, OnPolicyConfig) else OffPolicyAlgorithm
    if not isinstance(algorithm, wanted):
        is_other = isinstance(algorithm, OnPolicyAlgorithm | OffPolicyAlgorithm)
        advice = f"; register it with is_on_policy={wanted is OffPolicyAlgorithm}" if is_other else ""
        raise TypeError(
            f"algorithm {name!r} gave a {type(algorithm).__name__}; it must give an instance of a subclass of "
            f"{wanted.__module__}.{wanted.__name__}{advice}"
        )
    for field in fields(AlgorithmConfig):
        wanted_value, value = getattr(config, field.name), getattr(algorithm.config, field.name)
        if value != wanted_value:
            raise ValueError(
                f"algorithm {name!r} has {field.name}={value!r} in its config, but the run has {wanted_value!r}: make "
                "it with the config that its factory gets, or with dataclasses.replace(config, ...)"
            )
    return algorithm

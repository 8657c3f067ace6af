"""Base class of on-policy algorithms: an actor-critic that acts, and targets from stored values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.base import Action, Algorithm, Explore, Loss, Objective
from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.targets import Targets, targets_of
from rollmill.losses.ppo import masked
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.distributions import Sample
from rollmill.models.precision import wide
from rollmill.models.registry import make_model
from rollmill.specs import ActionSpec, ArraySpec


class PolicyEvaluation(NamedTuple):
    """The current network's outputs for a part of a minibatch, with gradient.

    Attributes:
        log_prob: ``[M]`` or ``[T, K]``, log pi(a_t | x_t).
        entropy: Likewise, in nats.
        value: ``[M]`` or ``[T(+1), K]``, V(x_t) in the network's units; with PopArt in those of the rewards.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from trajectories of recent policies.

    A subclass implements :meth:`loss`. It may have parameters in addition to the network's.

    Args:
        observation: Name -> spec.
        action: The action of one row, as in the environment.
        model: The network's configuration.
        config: The algorithm's configuration.

    Attributes:
        encoder_batch: Number of observations in one pass through the encoder when trajectories are unrolled; None
            encodes all at once. It affects speed only.
    """

    acting: ActorCritic

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OnPolicyConfig,
    ) -> None:
        super().__init__()
        self._take(make_model(observation, action, model), config)

    @classmethod
    def over(cls, network: ActorCritic, config: OnPolicyConfig) -> Self:
        """Build the algorithm for an existing network."""
        algorithm = cls.__new__(cls)
        Algorithm.__init__(algorithm)
        algorithm._take(network, config)
        return algorithm

    def _take(self, network: ActorCritic, config: OnPolicyConfig) -> None:
        self.config = config
        self.acting = network
        self.state_size = network.state_size
        self.encoder_batch: int | None = None

    @property
    def needs_trajectories(self) -> bool:
        """Whether minibatches are whole trajectories; else they are independent samples."""
        return bool(self.state_size)

    @property
    def needs_last_value(self) -> bool:
        """Whether :meth:`loss` computes V(x_T) itself, so that trajectories hold T + 1 observations."""
        return False

    @abstractmethod
    def loss(self, batch: OnPolicyBatch, generator: torch.Generator | None) -> Loss:
        """Compute a part's share of the loss: sums over samples that count, divided by ``batch.divisor``."""

    def prepare(self, arrays: Mapping[str, NDArray[Any]], *, value_mean: float, value_std: float) -> Targets:
        """Compute targets that do not need the current weights; runs in the learner's loader thread.

        Args:
            arrays: Arrays ``[T(+1), N, ...]`` of a batch, see :mod:`rollmill.specs`.
            value_mean: Values are stored as (V - value_mean) / value_std.
            value_std: See ``value_mean``.
        """
        trace = self.config.gae_lambda
        return targets_of(arrays, self.config, value_mean=value_mean, value_std=value_std, trace=trace)

    def coefficients(self, scheduled: Mapping[str, float]) -> Mapping[str, float]:
        """Return ``batch.coefficients`` for :meth:`loss`; the scheduled numbers by default."""
        return scheduled

    def objectives(self) -> Sequence[Objective]:
        """Return one objective, over all parameters."""
        return [Objective("actor_critic", [p for p in self.parameters() if p.requires_grad], self.loss, None)]

    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """See :meth:`rollmill.algorithms.base.Algorithm.act`; called in inference mode."""
        return self.act_with_state(observation, None, None, action_mask, explore)[0]

    def act_with_state(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor | None,
        action_mask: Tensor | None,
        explore: Explore | None,
    ) -> tuple[Action, Tensor | None]:
        """See :meth:`rollmill.algorithms.base.Algorithm.act_with_state`."""
        output = self.acting(observation, state, reset)
        return self.choose(output.params, output.value, action_mask, explore), output.rnn_state

    def choose(self, params: Tensor, value: Tensor, action_mask: Tensor | None, explore: Explore | None) -> Action:
        """Choose actions by what the network has computed.

        Rows of several networks may be joined if their distributions are alike.

        Args:
            params: The network's ``params [N, P]``.
            value: Its ``value [N]``.
            action_mask: As in :meth:`act_with_state`.
            explore: Likewise.
        """
        params, distribution = wide(params), self.acting.distribution
        if explore is None:
            return Action(*distribution.mode(params, action_mask))
        if explore.given is None:
            sample = distribution.sample_with_log_prob(params, action_mask, explore.generator, uniform=explore.uniform)
        else:
            discrete, continuous, *_ = explore.given
            sample = Sample(discrete, continuous, distribution.log_prob(params, discrete, continuous, action_mask))
        return Action(*sample, wide(value))

    def value(self, observation: Mapping[str, Tensor], state: Tensor | None, reset: Tensor | None) -> Tensor:
        """Compute V(x_t) in the network's units, ``[N]``; arguments as in :meth:`act_with_state`."""
        return wide(self.acting(observation, state, reset).value)

    def evaluate(self, batch: OnPolicyBatch) -> PolicyEvaluation:
        """Run the network over a part of a minibatch."""
        if batch.reset is not None:  # the part is whole trajectories
            rows = next(iter(batch.observation.values())).shape[0]
            output = self.acting.unroll(
                batch.observation,
                batch.rnn_state,
                batch.reset[:rows],
                batch.reset_steps,
                encoder_batch=self.encoder_batch,
            )
        else:
            output = self.acting(batch.observation, None, None)
        params, value, mask = wide(output.params), wide(output.value), batch.action_mask
        if batch.reset is not None:  # the last observation has no action
            steps = len(batch.keep)
            params, mask = params[:steps], None if mask is None else mask[:steps]
        evaluation = self.acting.distribution.evaluate(params, batch.discrete, batch.continuous, mask)
        return PolicyEvaluation(evaluation.log_prob, evaluation.entropy, value)

    def value_error(self, batch: OnPolicyBatch, value: Tensor) -> Tensor:
        """Return how far values are from the returns, for a loss of values; 0 for samples that do not count.

        The units are the network's; with PopArt, whose values are in the units of the rewards, the deviation of the
        task's returns is one.

        Args:
            batch: A part of a minibatch, with returns.
            value: As :meth:`evaluate` gave them.
        """
        assert batch.return_ is not None
        value = value[: batch.return_.shape[0]]
        # Masked here, because a target that is not a number would make the gradient of an invalid sample one, too.
        keep = None if batch.reset is None else batch.keep  # see PPO.loss
        error = masked(value - self.acting.normalise_value(batch.return_), keep)
        scale = self.acting.value_scale(batch.observation, value)
        return error if scale is None else error * scale

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict; checkpoints of earlier versions hold only the network."""
        if not any(name.startswith("acting.") for name in state_dict):
            state_dict = {f"acting.{name}": value for name, value in state_dict.items()}
        return super().load_state_dict(state_dict, strict, assign)

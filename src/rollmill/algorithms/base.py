"""What an off-policy algorithm is: networks, a way to act, and losses, each for an optimiser of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rollmill.algorithms.config import OffPolicyConfig
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec

__all__ = ["Action", "Explore", "Loss", "Objective", "OffPolicyAlgorithm", "SequenceBatch", "TransitionBatch"]

_HARD_UPDATE_EVERY = 2500  # SGD steps: SB3's DQN copies every 10,000 agent steps, with one SGD step for each 4


class TransitionBatch(NamedTuple):
    """N transitions (x_t, a_t, R_t, x_{t+k}), on the learner's device.

    Attributes:
        observation: Name -> ``[N, ...]``, x_t.
        discrete: int32 ``[N, K]``, the choices of a_t; None without categorical heads.
        continuous: float32 ``[N, C]``, the real numbers of a_t in [-1, 1], which stand for the Box's bounds; None
            without real heads.
        reward: float32 ``[N]``, ``sum_{j<k} gamma^j r_{t+j}``.
        discount: float32 ``[N]``, gamma^k: what x_{t+k}'s value counts; 0 where the episode terminated before.
        next_observation: Name -> ``[N, ...]``, x_{t+k}; the true final observation of a truncated episode.
        action_mask: bool ``[N, mask_size]`` at x_t; None where the environment has none.
        next_action_mask: Likewise at x_{t+k}.
        weight: float32 ``[N]``, importance weights of prioritised replay; ones where it is uniform.
    """

    observation: Mapping[str, Tensor]
    discrete: Tensor | None
    continuous: Tensor | None
    reward: Tensor
    discount: Tensor
    next_observation: Mapping[str, Tensor]
    action_mask: Tensor | None
    next_action_mask: Tensor | None
    weight: Tensor


class SequenceBatch(NamedTuple):
    """N sequences of W steps and W + 1 observations, on the learner's device; L of the steps are learned from.

    Steps ``burn_in`` to ``burn_in + L`` are the learned ones; what comes before makes the recurrent state, what comes
    behind stands in their returns.

    Attributes:
        burn_in: Steps before the learned ones.
        observation: Name -> ``[W + 1, N, ...]``.
        discrete: int32 ``[W, N, K]``, as in :class:`TransitionBatch`.
        continuous: float32 ``[W, N, C]``, likewise.
        reward: float32 ``[L, N]``, ``sum_{j<k} gamma^j r_{t+j}``; 0 where the step is not valid.
        discount: float32 ``[L, N]``, gamma^k: what x_{t+k}'s value counts; 0 where the episode terminated before, or
            the step is not valid.
        then: int64 ``[L, N]``: which of the W + 1 observations x_{t+k} is: the true final one of a truncated episode.
        valid: bool ``[L, N]``: whether there is anything to learn from the step.
        reset: bool ``[W + 1, N]``: the recurrent state is zeroed before x_t is consumed.
        reset_steps: Every t with any ``reset[t]``, ascending, known to the host.
        rnn_state: float32 ``[N, S]``, of whoever acted, before ``reset[0]`` is applied.
        action_mask: bool ``[W + 1, N, mask_size]``; None where the environment has none.
        weight: float32 ``[N]``, importance weights.
    """

    burn_in: int
    observation: Mapping[str, Tensor]
    discrete: Tensor | None
    continuous: Tensor | None
    reward: Tensor
    discount: Tensor
    then: Tensor
    valid: Tensor
    reset: Tensor
    reset_steps: Sequence[int]
    rnn_state: Tensor
    action_mask: Tensor | None
    weight: Tensor


class Explore(NamedTuple):
    """Who asks for an exploring action, and when.

    Attributes:
        agent_steps: Of the run so far, all rows together.
        total_steps: Agent steps that the run is to have.
        rows: int64 ``[N]``: which of the run's rows these are.
        num_rows: Rows of the run.
        reset: bool ``[N]``: rows whose observation is the first one of an episode.
        generator: Randomness, of the observation's device.
    """

    agent_steps: int
    total_steps: int
    rows: Tensor
    num_rows: int
    reset: Tensor
    generator: torch.Generator


class Action(NamedTuple):
    """Actions; None without columns. Others than these are refused.

    Attributes:
        discrete: int32 ``[N, K]``, from 0 below each head's number of choices.
        continuous: float32 ``[N, C]``, in [-1, 1], which the bounds of the action space are mapped to.
    """

    discrete: Tensor | None
    continuous: Tensor | None


class Loss(NamedTuple):
    """What an objective gives for a batch.

    Attributes:
        value: Scalar, to be minimised.
        td_error: ``[N]``, absolute temporal differences, detached: the samples' new priorities; None where the
            objective has none.
        statistics: Name -> detached scalar, on the device.
    """

    value: Tensor
    td_error: Tensor | None
    statistics: Mapping[str, Tensor]


class Objective(NamedTuple):
    """What one optimiser does.

    Attributes:
        name: ``"critic"``, for statistics and checkpoints.
        parameters: What it changes; what else the loss depends on gets no gradient.
        loss: Of a :class:`TransitionBatch`, or, where the algorithm has a recurrent state, of a
            :class:`SequenceBatch`; the generator (of the batch's device, None is torch's global one) is for noise.
        learning_rate: None is the learner's.
        every: Takes part in every so-manieth SGD step.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    loss: Callable[[Any, torch.Generator | None], Loss]
    learning_rate: float | None
    every: int = 1


class OffPolicyAlgorithm(nn.Module, ABC):
    """An off-policy algorithm; learners and policy workers build the same one.

    A subclass sets ``acting`` and writes :meth:`act`, :meth:`objectives` and :meth:`target_pairs`; see
    :mod:`rollmill.algorithms.registry` for an example.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: What networks.
        config: What is learned.

    Attributes:
        acting: The submodule whose weights a policy worker needs; :meth:`act` uses no other weights.
        state_size: Width of the recurrent state. Where it is 0 the algorithm learns from single transitions, else from
            sequences, and writes :meth:`act_with_state` too.
        published_tau: What ``tau=None`` stands for.
        published_policy_delay: What ``policy_delay=None`` stands for.
    """

    acting: nn.Module
    state_size: int = 0
    published_tau: float = 0.005
    published_policy_delay: int = 1

    def __init__(
        self,
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        model: ModelConfig,
        config: OffPolicyConfig,
    ) -> None:
        super().__init__()
        self.observation_spec = observation
        self.action_spec = action
        self.model_config = model
        self.config = config
        self._targets: _Targets | None = None

    @property
    def tau(self) -> float:
        """Share of the online weights in an update of the target ones."""
        return self.published_tau if self.config.tau is None else self.config.tau

    @property
    def policy_delay(self) -> int:
        """SGD steps for each one of the actor."""
        return self.published_policy_delay if self.config.policy_delay is None else self.config.policy_delay

    @property
    def target_update_every(self) -> int:
        """SGD steps from one update of the targets to the next."""
        if self.config.target_update_every is not None:
            return self.config.target_update_every
        return _HARD_UPDATE_EVERY if self.tau == 1.0 else self.policy_delay

    @abstractmethod
    def act(self, observation: Mapping[str, Tensor], action_mask: Tensor | None, explore: Explore | None) -> Action:
        """Choose actions, without gradient.

        Args:
            observation: Name -> ``[N, ...]``.
            action_mask: bool ``[N, mask_size]`` or None.
            explore: None asks for the best actions known, deterministically.

        With a recurrent state this is what it does at an episode's first observation.
        """

    def act_with_state(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor | None,
        action_mask: Tensor | None,
        explore: Explore | None,
    ) -> tuple[Action, Tensor | None]:
        """As :meth:`act`, for those who keep recurrent states.

        Args:
            observation: Name -> ``[N, ...]``.
            state: float32 ``[N, S]``; None stands for zeros, and is all there is without a recurrent state.
            reset: bool ``[N]``: rows whose state is zeroed first; None resets none.
            action_mask: bool ``[N, mask_size]`` or None.
            explore: As in :meth:`act`.

        Returns:
            Actions, and the next state ``[N, S]``.
        """
        return self.act(observation, action_mask, explore), None

    @abstractmethod
    def objectives(self) -> Sequence[Objective]:
        """What an SGD step consists of, in order; asked for once, when the parameters are on their device."""

    @abstractmethod
    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """(online, target) networks of the same structure."""

    @torch.no_grad()
    def update_targets(self, sgd_step: int) -> bool | None:
        """Move the target networks towards the online ones, if their turn has come; buffers are copied.

        Args:
            sgd_step: SGD steps done, the one before this call included.

        Returns:
            False if they are as they were, which saves parallel learners a copy.
        """
        if sgd_step % self.target_update_every:
            return False
        pairs = self._pairs_of_tensors()
        if not pairs.targets:
            return False
        if self.tau == 1.0:
            torch._foreach_copy_(pairs.targets, pairs.online)
        else:
            torch._foreach_lerp_(pairs.targets, pairs.online, self.tau)
        self.copy_buffers_to_targets()
        return True

    @torch.no_grad()
    def copy_buffers_to_targets(self) -> None:
        """Give the target networks the online ones' buffers, such as what pictures are centred by."""
        pairs = self._pairs_of_tensors()
        if pairs.online_buffers:
            torch._foreach_copy_(pairs.target_buffers, pairs.online_buffers)

    def _pairs_of_tensors(self) -> _Targets:
        if self._targets is None:
            self._targets = _Targets.of(self.target_pairs())
        return self._targets

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OffPolicyAlgorithm:
        # On another device the tensors may be other ones.
        self._targets = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self


class _Targets(NamedTuple):
    """Tensors of the pairs, each target once: networks may share an encoder."""

    online: list[Tensor]
    targets: list[Tensor]
    online_buffers: list[Tensor]
    target_buffers: list[Tensor]

    @classmethod
    def of(cls, pairs: Sequence[tuple[nn.Module, nn.Module]]) -> _Targets:
        parameters: dict[Tensor, Tensor] = {}
        buffers: dict[Tensor, Tensor] = {}
        for online, target in pairs:
            parameters |= zip(target.parameters(), online.parameters(), strict=True)
            buffers |= zip(target.buffers(), online.buffers(), strict=True)
        return cls(list(parameters.values()), list(parameters), list(buffers.values()), list(buffers))

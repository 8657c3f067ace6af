"""What an algorithm is: networks, a way to act, and objectives, each with an optimiser of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rollmill.algorithms.batches import SequenceBatch, TransitionBatch
from rollmill.algorithms.config import OffPolicyConfig
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec

__all__ = [
    "Action",
    "Algorithm",
    "Explore",
    "Loss",
    "Objective",
    "OffPolicyAlgorithm",
    "SequenceBatch",
    "TransitionBatch",
]

_HARD_UPDATE_EVERY = 2500  # SGD steps: SB3's DQN copies every 10,000 agent steps, with one SGD step for each 4


class Explore(NamedTuple):
    """Who asks for an exploring action, and when.

    Attributes:
        agent_steps: Of the run so far, all rows together.
        total_steps: Agent steps that the run is to have.
        rows: int64 ``[N]``: which of the run's rows these are.
        num_rows: Rows of the run.
        reset: bool ``[N]``: rows whose observation is the first one of an episode.
        generator: Randomness, of the observation's device.
        uniform: float32 ``[N, noise_size]`` in [0, 1): the randomness itself, keyed by row and step; None draws from
            the generator.
        given: Actions to be rated instead of sampled ones; None samples.
    """

    agent_steps: int
    total_steps: int
    rows: Tensor
    num_rows: int
    reset: Tensor
    generator: torch.Generator
    uniform: Tensor | None = None
    given: Action | None = None


class Action(NamedTuple):
    """Actions, and what on-policy algorithms learn from beside them; None without columns.

    Attributes:
        discrete: int32 ``[N, K]``, from 0 below each head's number of choices.
        continuous: float32 ``[N, C]``; of off-policy algorithms in [-1, 1], which is mapped to the action space's
            bounds.
        log_prob: Float ``[N]``, log-probability of the action; None where the algorithm does not need it.
        value: Float ``[N]``, V(x_t) in the network's units; None likewise.
    """

    discrete: Tensor | None
    continuous: Tensor | None
    log_prob: Tensor | None = None
    value: Tensor | None = None


class Loss(NamedTuple):
    """What an objective gives for a batch, or for a part of a minibatch, whose losses and statistics add up.

    Attributes:
        value: Scalar, to be minimised.
        td_error: ``[N]``, absolute temporal differences, detached: the samples' new priorities; None where the
            objective has none.
        statistics: Name -> detached scalar, on the device.
        moments: Sums of advantages that the loss itself has computed, see
            :func:`rollmill.losses.ppo.masked_sums`; None where there are none.
    """

    value: Tensor
    td_error: Tensor | None
    statistics: Mapping[str, Tensor]
    moments: Tensor | None = None


class Objective(NamedTuple):
    """What one optimiser does.

    Attributes:
        name: ``"critic"``, for statistics and checkpoints.
        parameters: What it changes; what else the loss depends on gets no gradient.
        loss: Of a :class:`TransitionBatch`; of a :class:`SequenceBatch` where an off-policy algorithm has a recurrent
            state; of an :class:`rollmill.algorithms.batches.OnPolicyBatch`. The generator (of the batch's device, None
            is torch's global one) is for noise.
        learning_rate: None is the learner's.
        every: Runs every ``every`` SGD steps.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    loss: Callable[[Any, torch.Generator | None], Loss]
    learning_rate: float | None
    every: int = 1


class Algorithm(nn.Module, ABC):
    """Networks, a way to act, and objectives; learners and policy workers build the same one.

    Attributes:
        acting: The submodule whose weights a policy worker needs; :meth:`act` uses no other weights.
        state_size: Width of the recurrent state; 0 without one. An algorithm with one writes :meth:`act_with_state`.
    """

    acting: nn.Module
    state_size: int = 0

    def __init__(self) -> None:
        super().__init__()
        self._targets: _Targets | None = None

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
        """As :meth:`act`, with a recurrent state.

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
        """The parts of an SGD step, in order; called once, when the parameters are on their device."""

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """(online, target) networks of the same structure; none by default."""
        return ()

    def update_targets(self, sgd_step: int) -> bool | None:
        """Move the target networks towards the online ones, if it is time; called after each SGD step.

        Args:
            sgd_step: SGD steps done, the one before this call included.

        Returns:
            False if nothing has changed, which saves parallel learners a copy.
        """
        return False

    @torch.no_grad()
    def copy_buffers_to_targets(self) -> None:
        """Give the target networks the online ones' buffers, such as what pictures are centred by."""
        pairs = self.pairs_of_tensors()
        if pairs.online_buffers:
            torch._foreach_copy_(pairs.target_buffers, pairs.online_buffers)

    def pairs_of_tensors(self) -> _Targets:
        """The tensors of :meth:`target_pairs`."""
        if self._targets is None:
            self._targets = _Targets.of(self.target_pairs())
        return self._targets

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Algorithm:
        # On another device the tensors may be other ones.
        self._targets = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from a replay.

    A subclass sets ``acting`` and writes :meth:`act`, :meth:`objectives` and :meth:`target_pairs`; see
    :mod:`rollmill.algorithms.registry` for an example. Where ``state_size`` is 0 it learns from single transitions,
    else from sequences.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: What networks.
        config: What is learned.

    Attributes:
        published_tau: What ``tau=None`` stands for.
        published_policy_delay: What ``policy_delay=None`` stands for.
    """

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

    @torch.no_grad()
    def update_targets(self, sgd_step: int) -> bool | None:
        """See :meth:`Algorithm.update_targets`; buffers are copied."""
        if sgd_step % self.target_update_every:
            return False
        pairs = self.pairs_of_tensors()
        if not pairs.targets:
            return False
        if self.tau == 1.0:
            torch._foreach_copy_(pairs.targets, pairs.online)
        else:
            torch._foreach_lerp_(pairs.targets, pairs.online, self.tau)
        self.copy_buffers_to_targets()
        return True


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

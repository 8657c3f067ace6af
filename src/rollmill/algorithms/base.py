"""Base classes of algorithms: networks, acting, and objectives with one optimiser each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rollmill.algorithms.off_policy_config import ActorCriticConfig, OffPolicyConfig
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec

_HARD_UPDATE_EVERY = 2500  # SGD steps: SB3's DQN copies every 10,000 agent steps, with one SGD step for each 4


class Explore(NamedTuple):
    """Context of a request for exploring actions.

    Attributes:
        agent_steps: Agent steps of the run so far, over all rows.
        total_steps: Agent steps of the whole run.
        rows: int64 ``[N]``, indices of these rows in the run.
        num_rows: Rows of the run.
        reset: bool ``[N]``: rows whose observation is the first of an episode.
        generator: Random generator on the observation's device.
        uniform: float32 ``[N, noise_size]`` in [0, 1): random numbers keyed by row and step; None draws from the
            generator.
        given: Actions to evaluate instead of sampled ones; None samples.
        rungs: float32 ``[N]``, places of these rows on a ladder of epsilons, from 0 to ``num_rows - 1``; None is
            ``rows``.
    """

    agent_steps: int
    total_steps: int
    rows: Tensor
    num_rows: int
    reset: Tensor
    generator: torch.Generator
    uniform: Tensor | None = None
    given: Action | None = None
    rungs: Tensor | None = None


class Action(NamedTuple):
    """Actions, and the quantities that on-policy algorithms store with them.

    Attributes:
        discrete: int32 ``[N, K]``, from 0 to below each head's number of choices; None without categorical heads.
        continuous: float32 ``[N, C]``; None without real heads. Off-policy algorithms give numbers in [-1, 1], which
            are mapped to the action space's bounds.
        log_prob: Float ``[N]``, log-probability of the action; None if the algorithm does not need it.
        value: Float ``[N]``, V(x_t) in the network's units; likewise.
    """

    discrete: Tensor | None
    continuous: Tensor | None
    log_prob: Tensor | None = None
    value: Tensor | None = None


class Loss(NamedTuple):
    """An objective's result for a batch, or for a part of a minibatch, which add up.

    Attributes:
        value: Scalar to minimise.
        td_error: ``[N]``, absolute temporal differences, detached: the samples' new priorities; None if the objective
            has none.
        statistics: Name -> detached scalar, on the device.
        moments: Sums of the advantages that the loss has computed, see :func:`rollmill.losses.ppo.masked_sums`; None if
            there are none.
    """

    value: Tensor
    td_error: Tensor | None
    statistics: Mapping[str, Tensor]
    moments: Tensor | None = None


class Objective(NamedTuple):
    """A loss and the parameters that one optimiser trains with it.

    Attributes:
        name: Name for statistics and checkpoints, such as ``"critic"``.
        parameters: Parameters to train; others get no gradient.
        loss: Function of a :class:`TransitionBatch`, of a :class:`SequenceBatch` (off-policy algorithms with a
            recurrent state), or of an :class:`rollmill.algorithms.batches.OnPolicyBatch`, and of a generator for noise
            on the batch's device (None is torch's global one).
        learning_rate: Learning rate; None is the learner's.
        every: Runs every ``every`` SGD steps.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    loss: Callable[[Any, torch.Generator | None], Loss]
    learning_rate: float | None
    every: int = 1


class Algorithm(nn.Module, ABC):
    """Networks, acting and objectives. Learners and policy workers build the same algorithm.

    Attributes:
        acting: The submodule that policy workers use; :meth:`act` uses no other weights.
        state_size: Width of the recurrent state; 0 without one. An algorithm with one implements
            :meth:`act_with_state`.
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
            explore: None requests the best known actions, deterministically.

        With a recurrent state, the observations count as the first of an episode.
        """

    def act_with_state(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor | None,
        reset: Tensor | None,
        action_mask: Tensor | None,
        explore: Explore | None,
    ) -> tuple[Action, Tensor | None]:
        """Choose actions with a recurrent state.

        Args:
            observation: Name -> ``[N, ...]``.
            state: float32 ``[N, S]``; None means zeros; always None without a recurrent state.
            reset: bool ``[N]``: rows whose state is zeroed first; None resets none.
            action_mask: bool ``[N, mask_size]`` or None.
            explore: As in :meth:`act`.

        Returns:
            Actions, and the next state ``[N, S]``.
        """
        return self.act(observation, action_mask, explore), None

    @abstractmethod
    def objectives(self) -> Sequence[Objective]:
        """Return the parts of an SGD step, in order; called once, after the parameters are on their device."""

    def trained_objectives(self) -> list[Objective]:
        """Return :meth:`objectives` without the parameters that are frozen (``learner.freeze``)."""
        return [each._replace(parameters=[p for p in each.parameters if p.requires_grad]) for each in self.objectives()]

    def target_pairs(self) -> Sequence[tuple[nn.Module, nn.Module]]:
        """Return (online, target) networks of the same structure; none by default."""
        return ()

    def update_targets(self, sgd_step: int) -> bool | None:
        """Move the target networks towards the online ones, if due; called after each SGD step.

        Args:
            sgd_step: SGD steps so far, including the last one.

        Returns:
            False if nothing has changed, so that parallel learners can skip a copy.
        """
        return False

    @torch.no_grad()
    def copy_buffers_to_targets(self) -> None:
        """Copy the online networks' buffers, such as brightness statistics, to the target networks."""
        pairs = self.pairs_of_tensors()
        if pairs.online_buffers:
            torch._foreach_copy_(pairs.target_buffers, pairs.online_buffers)

    def pairs_of_tensors(self) -> _Targets:
        """Return the tensors of :meth:`target_pairs`."""
        if self._targets is None:
            self._targets = _Targets.of(self.target_pairs())
        return self._targets

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Algorithm:
        # The tensors may change with the device.
        self._targets = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from a replay.

    A subclass sets ``acting`` and implements :meth:`act`, :meth:`objectives` and :meth:`target_pairs`; see
    :mod:`rollmill.algorithms.registry` for an example. With ``state_size`` 0 it learns from single transitions, else
    from sequences.

    Args:
        observation: Name -> spec.
        action: The action of one row.
        model: The networks' configuration.
        config: The algorithm's configuration.

    Attributes:
        published_tau: Value of ``tau=None``.
        published_policy_delay: Value of ``policy_delay=None``.
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
        """Weight of the online networks in an update of the target networks."""
        return self.published_tau if self.config.tau is None else self.config.tau

    @property
    def policy_delay(self) -> int:
        """SGD steps per step of the actor."""
        given = self.config.policy_delay if isinstance(self.config, ActorCriticConfig) else None
        return self.published_policy_delay if given is None else given

    @property
    def target_update_every(self) -> int:
        """SGD steps between updates of the targets."""
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
    """Tensors of the pairs, each target once, because networks may share an encoder."""

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

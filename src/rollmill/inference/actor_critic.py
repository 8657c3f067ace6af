"""The policy worker of on-policy algorithms: actions of an actor-critic, their log-probabilities, and values.

Of recurrent state, a slot gets what was before its x_0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.envs.random_actions import random_actions
from rollmill.inference.worker import PolicyWorker
from rollmill.models.actor_critic import ActorCritic, ActorCriticOutput
from rollmill.models.distributions import Sample
from rollmill.models.precision import wide
from rollmill.native import gather
from rollmill.roles import InferencePhase
from rollmill.storage.slots import NO_SLOT


class ActorCriticPolicyWorker(PolicyWorker[ActorCritic]):
    """See :class:`rollmill.inference.worker.PolicyWorker`."""

    def _prepare(self, model: ActorCritic) -> None:
        # Observation blocks [num_slots * (T + 1), B, ...]: a group's x_t is one row of this view, contiguous.
        self._blocks = {name: a.reshape(-1, *a.shape[2:]) for name, a in self._store.observation.items()}
        # Page-locked for a GPU, which copies from it without a detour.
        self._staging = {
            name: torch.empty(
                (self._batching.max_groups, *block.shape[1:]),
                dtype=torch.from_numpy(block[:0]).dtype,
                pin_memory=not self._on_cpu,
            ).numpy()
            for name, block in self._blocks.items()
        }

    def _infer(
        self,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        """Forward pass, sampling, and everything that is written beside x_t."""
        store = self._store
        arrays, rows = store.arrays, self._rows
        output = self._forward(groups, slots, steps)
        params = wide(output.params)
        distribution = self._acting.model.distribution
        mask_tensor = None if mask is None else torch.from_numpy(mask).to(self._device)
        if self._config.random_actions:
            drawn = random_actions(self._action, mask, len(groups) * rows, self._random)
            discrete, continuous = (None if a is None else torch.from_numpy(a).to(self._device) for a in drawn)
            log_prob = distribution.log_prob(params, discrete, continuous, mask_tensor)
        else:
            discrete, continuous, log_prob = self._sample(params, mask_tensor, groups, steps)
        self._keep_state(groups, output.rnn_state)
        self._write_actions(
            slots,
            steps,
            None if discrete is None else discrete.cpu().numpy(),
            None if continuous is None else continuous.cpu().numpy(),
        )
        self._ledger.enter(InferencePhase.SCATTERING)
        value = wide(output.value).cpu().numpy().reshape(len(groups), rows)
        arrays["log_prob"][slots, steps] = log_prob.cpu().numpy().reshape(len(groups), rows)
        arrays["value"][slots, steps] = value
        arrays["policy_version"][slots, steps] = self._acting.version
        previous = store.group_previous_slot[groups]
        bootstraps = previous != NO_SLOT
        if bootstraps.any():
            arrays["value"][previous[bootstraps], store.topology.rollout_length] = value[bootstraps]

    def _forward(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> ActorCriticOutput:
        """The network for x_t of these groups; what it gives is ``[n * B, ...]``."""
        self._ledger.enter(InferencePhase.GATHERING)
        observation = self._observation(slots, steps)
        reset = torch.from_numpy(self._store.arrays["reset"][slots, steps].reshape(-1)).to(self._device)
        state = self._take_state(groups, slots, steps)
        self._ledger.enter(InferencePhase.FORWARD)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            output: ActorCriticOutput = self._acting.model(observation, state, reset)
        return output

    def _sample(
        self, params: Tensor, mask: Tensor | None, groups: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Sample:
        """Actions for ``params [n * B, P]``, with this worker's own noise."""
        return self._acting.model.distribution.sample_with_log_prob(params, mask, self._generator)

    def _observation(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``: on a CPU a view of the slot for one group, else one gather."""
        if len(slots) > 1 or not self._on_cpu:
            return self._gathered(slots, steps)
        place = slots[0] * (self._store.topology.rollout_length + 1) + steps[0]
        return {name: torch.from_numpy(blocks[place]) for name, blocks in self._blocks.items()}

    def _gathered(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``, copied into memory that the next call overwrites."""
        index = slots * (self._store.topology.rollout_length + 1) + steps
        result = {}
        for name, blocks in self._blocks.items():
            block = self._staging[name][: len(index)]
            gather(block, blocks, index)
            rows = torch.from_numpy(block.reshape(-1, *blocks.shape[2:]))
            result[name] = rows.to(self._device, non_blocking=True)
        return result

    def _store_state(self, slots: NDArray[np.int64], steps: NDArray[np.int64], state: Tensor) -> None:
        begins = steps == 0
        if begins.any():
            self._store.arrays["rnn_state"][slots[begins]] = state[torch.from_numpy(begins)].cpu().numpy()

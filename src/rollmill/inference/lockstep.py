"""The policy worker in lockstep: the same groups together, with exactly the version that their iteration asks for.

What it writes is a function of the configuration alone. A batch always holds the same groups in the same order; its
weights are those of version max(0, i - lag), i being the iteration that the groups' slots belong to; and a row's noise
is keyed by (seed, row, step), so it does not matter which worker draws it, or when.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.inference.actor_critic import ActorCriticPolicyWorker
from rollmill.inference.batching import Batching, FixedGroups
from rollmill.inference.config import InferenceConfig
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.distributions import Sample
from rollmill.models.precision import wide
from rollmill.roles import InferencePhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.noise import RowNoise
from rollmill.specs import ActionSpec
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import WeightStore


class LockstepPolicyWorker(ActorCriticPolicyWorker):
    """Answers the requests of its groups, reproducibly.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots; each group has ``lag + 1`` of its own.
        weights: Where the learner publishes; holds ``lag + 1`` versions.
        index: Which policy worker this is.
        model: A copy of the policy's network.
        action: The action spec.
        config: Device and precision, the latter settled ("auto" would be measured).
        seed: The run's; keys the sampling noise.
        first_row: Index of this machine's first row among all of the run's.
        first_iteration: Where the run begins, or goes on.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        weights: WeightStore,
        index: int,
        model: ActorCritic,
        *,
        action: ActionSpec,
        config: InferenceConfig,
        seed: int,
        first_row: int = 0,
        first_iteration: int = 0,
    ) -> None:
        """Copies the model for each version that may be in use at once."""
        super().__init__(context, store, weights, index, model, action=action, config=config, seed=seed)
        self._first_iteration = first_iteration
        self._rollout_length = store.topology.rollout_length
        # [num_groups, B]: who the rows are, wherever they are stepped.
        places = np.arange(store.topology.num_groups * self._rows).reshape(-1, self._rows)
        self._row_of_place = first_row + places
        self._noise = RowNoise(seed, "actions", width=model.distribution.noise_size)

    def _num_versions(self) -> int:
        # Groups of so many iterations may be under way at once.
        return self._store.topology.slots_per_group

    def _make_batching(self, config: InferenceConfig) -> Batching:
        return FixedGroups(self._store, self._index)

    def _first_version(self) -> int:
        return self._first_iteration

    def _load(self, groups: NDArray[np.int64]) -> None:
        """Turns to the copy with the weights of the groups' iteration. They were published before it could begin."""
        self._ledger.enter(InferencePhase.LOADING)
        iteration = int(self._store.group_iteration[groups[0]])
        version = max(0, iteration - (self._num_versions() - 1))
        self._acting = acting = self._copies[version % len(self._copies)]
        if acting.version != version:
            self._weights.read(version, acting.flat.bytes)
            acting.flat.unpack()
            acting.version = version

    def _infer(
        self,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        if steps[0] < self._rollout_length:
            super()._infer(groups, slots, steps, mask)
            return
        # x_T: its value completes the slot. The action is chosen when x_T is x_0 of the next slot, by another version.
        value = wide(self._forward(groups, slots, steps).value).cpu().numpy()
        self._ledger.enter(InferencePhase.SCATTERING)
        self._store.arrays["value"][slots, steps] = value.reshape(len(groups), self._rows)
        if self._state is not None:
            assert self._store.group_rnn_state is not None
            self._store.group_rnn_state[groups] = self._state[self._place_of_group[groups]].cpu().numpy()

    def _take_state(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Tensor | None:
        if self._state is not None and steps[0] == 0:
            # From shared memory, where a resumed run's states are, too.
            assert self._store.group_rnn_state is not None
            carried = torch.from_numpy(self._store.group_rnn_state[groups])
            self._state[self._place_of_group[groups]] = carried.to(self._device)
        return super()._take_state(groups, slots, steps)

    def _sample(
        self, params: Tensor, mask: Tensor | None, groups: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Sample:
        """Actions for ``params [n * B, P]``, with noise that is keyed by row and step."""
        step = self._store.group_iteration[groups] * self._rollout_length + steps
        rows = self._row_of_place[groups]
        uniform = self._noise.uniform(rows.reshape(-1), np.repeat(step, self._rows))
        on_device = torch.from_numpy(uniform).to(self._device)
        return self._acting.model.distribution.sample_with_log_prob(params, mask, uniform=on_device)

    def _observation(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> Mapping[str, Tensor]:
        # Always a copy: results may depend on alignment, and a slot's rows are aligned as their size has it.
        return self._gathered(slots, steps)

"""The policy worker in the replay regime: exploring actions of an off-policy algorithm, and nothing beside them.

Transitions carry neither values nor probabilities: what is replayed is learned from whatever chose it. Slots get
recurrent state where a sequence may begin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.algorithms.base import Action, Explore, OffPolicyAlgorithm
from rollmill.inference.config import InferenceConfig
from rollmill.inference.worker import PolicyWorker
from rollmill.roles import InferencePhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.replay import ReplayStore
from rollmill.storage.weights import WeightStore


class ReplayPolicyWorker(PolicyWorker[OffPolicyAlgorithm]):
    """Answers the requests of its groups with exploring actions.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The replay.
        weights: Where the learner publishes the acting network.
        index: Which policy worker this is.
        algorithm: Its own copy of it.
        action: The action spec, real numbers in [-1, 1].
        config: Batching, device and precision ("auto" resolved by now).
        seed: Keys this worker's exploration.
        total_steps: Of the run, for schedules.
        world_size: Ranks of the run, which step alike.
        first_row: Index of this rank's first row among all of the run's.
        num_rows: Rows of the run.
    """

    _store: ReplayStore

    def __init__(
        self,
        context: ChildContext,
        store: ReplayStore,
        weights: WeightStore,
        index: int,
        algorithm: OffPolicyAlgorithm,
        *,
        action: ActionSpec,
        config: InferenceConfig,
        seed: int,
        total_steps: int,
        world_size: int,
        first_row: int,
        num_rows: int,
    ) -> None:
        """As a policy worker's."""
        super().__init__(context, store, weights, index, algorithm, action=action, config=config, seed=seed)
        self._total_steps = total_steps
        self._world_size = world_size
        self._num_rows = num_rows
        self._choices = np.array(action.categorical_sizes, np.int64)
        rows = first_row + np.arange(store.topology.num_groups * self._rows).reshape(-1, self._rows)
        self._row_of_place = torch.from_numpy(rows).to(self._device)

    def _published_part(self, model: OffPolicyAlgorithm) -> nn.Module:
        return model.acting

    def _infer(
        self,
        groups: NDArray[np.int64],
        slots: NDArray[np.int64],
        steps: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        store = self._store
        self._ledger.enter(InferencePhase.GATHERING)
        observation = self._shown(groups, slots, steps)
        reset = torch.from_numpy(store.arrays["reset"][slots, steps].reshape(-1)).to(self._device)
        explore = Explore(
            agent_steps=store.limiter.inserted * self._world_size,
            total_steps=self._total_steps,
            rows=self._row_of_place[torch.from_numpy(groups)].reshape(-1),
            num_rows=self._num_rows,
            reset=reset,
            generator=self._generator,
        )
        state = self._take_state(groups, slots, steps)
        self._ledger.enter(InferencePhase.FORWARD)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            action, state = self._acting.model.act_with_state(
                observation, state, reset, None if mask is None else torch.from_numpy(mask).to(self._device), explore
            )
        self._check_shapes(action, len(groups) * self._rows)
        discrete = None if action.discrete is None else action.discrete.cpu().numpy()
        continuous = None if action.continuous is None else action.continuous.float().cpu().numpy()
        self._check_values(discrete, continuous)
        self._ledger.enter(InferencePhase.SCATTERING)
        self._keep_state(groups, state)
        self._write_actions(slots, steps, discrete, continuous)
        store.arrays["policy_version"][slots, steps] = self._acting.version

    def _check_shapes(self, action: Action, rows: int) -> None:
        """Whether an algorithm, which may be the user's own, has chosen what the slots have room for."""
        widths = {"discrete": self._action.num_discrete, "continuous": self._action.num_continuous}
        for (name, width), given in zip(widths.items(), action, strict=True):
            shape = None if given is None else tuple(given.shape)
            if shape != ((rows, width) if width else None):
                raise ValueError(
                    f"{type(self._acting.model).__name__}.act gave {name} actions of shape {shape}, but "
                    f"{(rows, width) if width else None} is needed: a row for each environment's agent, a column for "
                    "each of its numbers, None where the action space has no such numbers"
                )

    def _check_values(self, discrete: NDArray[np.int32] | None, continuous: NDArray[np.float32] | None) -> None:
        """Whether it is in the action space: the environment would be given something else than what is replayed."""
        wrong = ""
        if discrete is not None and (bad := (discrete < 0) | (discrete >= self._choices)).any():
            row, column = np.argwhere(bad)[0]
            choices = self._choices[column]
            wrong = f"the choice {discrete[row, column]} in column {column}, which has the choices 0 to {choices - 1}"
        elif continuous is not None and (bad := ~(np.abs(continuous) <= 1.0)).any():  # NaN is not, either.
            row, column = np.argwhere(bad)[0]
            wrong = f"the number {continuous[row, column]} in column {column}; all have to be in [-1, 1]"
        if wrong:
            raise ValueError(f"{type(self._acting.model).__name__}.act gave {wrong}")

    def _store_state(self, slots: NDArray[np.int64], steps: NDArray[np.int64], state: Tensor) -> None:
        if (steps % self._store.stride == 0).any():
            self._store.keep_rnn_state(slots, steps, state.cpu().numpy())

    def _shown(
        self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> Mapping[str, Tensor]:
        """x_t of every group as ``[n * B, ...]``, whole stacks."""
        return {
            name: torch.from_numpy(array.reshape(-1, *array.shape[2:])).to(self._device, non_blocking=True)
            for name, array in self._store.shown_to(groups, slots, steps).items()
        }

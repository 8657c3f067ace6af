"""A group as its rollout worker sees it, and where its environments read and write: views into a step of a slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import ObservationView, OutcomeView, SavableGroup
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import ACTS, NO_SLOT, OBJECTIVE, REWARD_TERMS, SlotStore

_OPTIONAL = (REWARD_TERMS, OBJECTIVE)


@dataclass(slots=True, kw_only=True)
class HostedGroup:
    """A group's environments, and where it writes.

    Attributes:
        index: Which group, of those of this machine.
        environments: Its environments.
        iteration: How many slots the group has filled; in lockstep, the iteration that its slot belongs to.
        slot: Where it writes.
        step: t of the newest observation in the slot; T when the slot is full.
        previous_slot: The full slot before, while V(x_T) of it is missing; see ``PooledSlots``.
    """

    index: int
    environments: SavableGroup
    iteration: int = 0
    slot: int = NO_SLOT
    step: int = 0
    previous_slot: int = NO_SLOT


class SlotViews:
    """Views into the slot that a group fills.

    Args:
        store: The slots.
    """

    def __init__(self, store: SlotStore) -> None:
        arrays = store.arrays
        self._observation = store.observation
        self._mask = arrays.get("action_mask")
        self._reset = arrays["reset"]
        self._acts = arrays.get(ACTS)
        self._discrete = arrays.get("action_discrete")
        self._continuous = arrays.get("action_continuous")
        self._outcome = [arrays[name] for name in OutcomeView._fields if name in arrays and name not in _OPTIONAL]
        self._optional = {name: arrays[name] for name in _OPTIONAL if name in arrays}

    def observation(self, group: HostedGroup, step: int) -> ObservationView:
        """The place of the group's x_t, t = ``step``."""
        slot = group.slot
        return self._view({name: array[slot, step] for name, array in self._observation.items()}, slot, step)

    def _view(self, observation: Mapping[str, NDArray[Any]], slot: int, step: int) -> ObservationView:
        mask, acts = self._mask, self._acts
        return ObservationView(
            observation,
            None if mask is None else mask[slot, step],
            self._reset[slot, step],
            None if acts is None else acts[slot, step],
        )

    def outcome(self, group: HostedGroup, step: int) -> OutcomeView:
        """The place of what a_t caused, t = ``step``."""
        slot = group.slot
        outcome = OutcomeView(*[array[slot, step] for array in self._outcome])
        if not self._optional:
            return outcome
        return outcome._replace(**{name: array[slot, step] for name, array in self._optional.items()})

    def actions(self, group: HostedGroup, step: int) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """The place of a_t, t = ``step``: discrete ``[B, Kd]``, continuous ``[B, Kc]``."""
        slot, discrete, continuous = group.slot, self._discrete, self._continuous
        return (
            None if discrete is None else discrete[slot, step],
            None if continuous is None else continuous[slot, step],
        )


class ReplayViews(SlotViews):
    """As :class:`SlotViews`, but whole stacks of frames and the statistics of episodes are not kept in slots.

    Args:
        store: The replay.
        groups: The groups of the rollout worker.

    Attributes:
        episodes: Group -> returns ``[B]`` and lengths ``[B]`` of the episodes that ended with its latest step; length 0
            where none did.
    """

    def __init__(self, store: ReplayStore, groups: Iterable[int]) -> None:
        super().__init__(store)
        self._store = store
        rows = store.topology.group_rows
        self.episodes = {group: (np.zeros(rows, np.float32), np.zeros(rows, np.int32)) for group in groups}

    def observation(self, group: HostedGroup, step: int) -> ObservationView:
        """The place of the group's x_t, t = ``step``."""
        return self._view(self._store.shown(group.index, group.slot, step), group.slot, step)

    def outcome(self, group: HostedGroup, step: int) -> OutcomeView:
        """The place of what a_t caused, t = ``step``."""
        slot = group.slot
        reward, terminated, truncated, valid = (array[slot, step] for array in self._outcome)
        return OutcomeView(reward, terminated, truncated, valid, *self.episodes[group.index])

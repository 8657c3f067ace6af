"""Batches of trajectories: references to rows of completed slots, and the small arrays of those rows.

Observations are not copied here. A batch refers to trajectories (slot, row) and holds a reference on their slots; each
part of a minibatch gathers its observations from the slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.turns import turns_only
from rollmill.native import gather_trajectories
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.matches import Match, matches_of
from rollmill.storage.slots import ACTS, MATCH_RETURN, OBJECTIVE, OBSERVATION_PREFIX, POLICY_ID, RNN_STATE, SlotStore

# Not needed on the learner's device.
_NOT_GATHERED = ("episode_return", "episode_length", OBJECTIVE, MATCH_RETURN)


@dataclass(frozen=True)
class Trajectories:
    """A batch of trajectories.

    Attributes:
        arrays: Small arrays ``[T(+1), N, ...]`` by their names in a slot (see :mod:`rollmill.specs`); ``rnn_state``
            is ``[N, S]``.
        observation_index: int64 ``[T + 1, N]``: row of x_t of each trajectory in the observation arrays, viewed as
            ``[num_slots * (T + 1) * B, ...]``.
        slots: One entry for each reference that the batch holds.
        episodes: Episodes that ended within these trajectories.
        matches: Results of matches against other players that ended within them.
        last_policies: Ids of who plays the rows at x_T; None with one player.
        tasks: int64 ``[N]``, the task of each trajectory; None without several tasks.
    """

    arrays: dict[str, NDArray[Any]]
    observation_index: NDArray[np.int64]
    slots: tuple[int, ...]
    episodes: tuple[EpisodeEnd, ...]
    matches: tuple[Match, ...] = ()
    last_policies: NDArray[np.int16] | None = None
    tasks: NDArray[np.int64] | None = None

    @property
    def num_trajectories(self) -> int:
        """N."""
        return int(self.observation_index.shape[1])

    @property
    def versions(self) -> NDArray[np.int32]:
        """The policy versions that chose the actions, of valid samples."""
        versions: NDArray[np.int32] = self.arrays["policy_version"][self.arrays["valid"]]
        return versions

    @property
    def rollout_length(self) -> int:
        """T."""
        return int(self.observation_index.shape[0]) - 1


def gather_trajectories_of(store: SlotStore, segments: NDArray[np.int64]) -> Trajectories:
    """Gather the trajectories of some slots as one batch; with several agents or players, the policy's turns.

    Args:
        store: The slots, as the learner of a policy sees them.
        segments: int64 ``[n, 4]``: slot, first row, number of rows, and the first trajectory in the batch.
    """
    num_trajectories = int(segments[:, 2].sum())
    arrays = {}
    for name, array in store.arrays.items():
        if name.startswith(OBSERVATION_PREFIX) or name in _NOT_GATHERED:
            continue
        per_step = array if name != RNN_STATE else array[:, None]
        out = np.empty((per_step.shape[1], num_trajectories, *per_step.shape[3:]), per_step.dtype)
        gather_trajectories(out, per_step, segments, per_step.shape[1])
        arrays[name] = out if name != RNN_STATE else out[0]
    if RNN_STATE in arrays and store.state_size is not None:
        state = arrays.pop(RNN_STATE)[:, : store.state_size]
        arrays |= {RNN_STATE: state} if store.state_size else {}
    index = _observation_index(store, segments)
    tasks = None if store.task_of_slot is None else np.repeat(store.task_of_slot[segments[:, 0]], segments[:, 2])
    slots, episodes = tuple(segments[:, 0].tolist()), _episodes(store, segments)
    matches, last_policies, own = _matches(store, segments), None, None
    if (policies := arrays.pop(POLICY_ID, None)) is not None:
        own = policies == store.policy
        last_policies = np.unique(policies[-1])
        if ACTS not in arrays and not own.all():
            arrays[ACTS] = np.ones_like(own)
        arrays["valid"] &= own[:-1]
    if ACTS not in arrays:
        return Trajectories(arrays, index, slots, episodes, matches, last_policies, tasks)
    turns = turns_only(arrays, own)
    index = np.take_along_axis(index[:, turns.column], turns.step, axis=0)
    tasks = None if tasks is None else tasks[turns.column]
    return Trajectories(turns.arrays, index, slots, episodes, matches, last_policies, tasks)


def _observation_index(store: SlotStore, segments: NDArray[np.int64]) -> NDArray[np.int64]:
    topology = store.topology
    slot = np.repeat(segments[:, 0], segments[:, 2])
    row = np.concatenate([np.arange(first, first + rows) for _, first, rows, _ in segments])
    step = np.arange(topology.rollout_length + 1)[:, None]
    index: NDArray[np.int64] = (slot * (topology.rollout_length + 1) + step) * topology.group_rows + row
    return index


def _matches(store: SlotStore, segments: NDArray[np.int64]) -> tuple[Match, ...]:
    if MATCH_RETURN not in store.arrays:
        return ()
    agents, steps = store.topology.agents_per_env, store.topology.rollout_length
    found: list[Match] = []
    for slot, first, rows, _ in segments.tolist():
        # A custom admission rule may cut a slot within an environment, whose match is not counted then.
        columns = slice(-(-first // agents) * agents, (first + rows) // agents * agents)
        policies, returns = (store.arrays[name][slot, :, columns] for name in (POLICY_ID, MATCH_RETURN))
        found += matches_of(policies[:steps], returns[1:], agents, policy=store.policy)
    return tuple(found)


def _episodes(store: SlotStore, segments: NDArray[np.int64]) -> tuple[EpisodeEnd, ...]:
    lengths, returns = store.arrays["episode_length"], store.arrays["episode_return"]
    objectives = store.arrays.get(OBJECTIVE)
    policies, steps_of_slot = store.arrays.get(POLICY_ID), store.topology.rollout_length
    ends = []
    for slot, first, rows, _ in segments.tolist():
        of_segment = lengths[slot, :, first : first + rows]
        if policies is not None:
            own = policies[slot, :steps_of_slot, first : first + rows] == store.policy
            of_segment = np.where(own, of_segment, 0)
        steps, columns = np.nonzero(of_segment)
        if len(steps):
            at = steps, columns + first
            worth = [None] * len(steps) if objectives is None else objectives[slot][at].tolist()
            found = zip(returns[slot][at].tolist(), lengths[slot][at].tolist(), worth, strict=True)
            task = None if store.task_of_slot is None else int(store.task_of_slot[slot])
            ends += [EpisodeEnd(*episode, task) for episode in found]
    return tuple(ends)

"""What a checkpoint needs of a rollout worker's groups, so that a run resumes exactly (the lockstep regime).

A group saves its state at the end of every iteration that a checkpoint follows. Environments that cannot be saved are
rebuilt at that point in every run, interrupted or not, so that a resumed run does the same as one that was never
interrupted. x_T of the last slot before a rebuild is bootstrapped from as at every slot's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmill.roles import RolloutPhase
from rollmill.rollout.group_builder import GroupBuilder
from rollmill.rollout.matchmaker import Matchmaker
from rollmill.rollout.slot_views import HostedGroup, SlotViews
from rollmill.runtime.signed_files import require_trust
from rollmill.storage.group_states import GroupState, GroupStates
from rollmill.storage.slots import SlotStore


@dataclass(frozen=True, kw_only=True)
class GroupCheckpoints:
    """Saves, restores and rebuilds groups at the boundaries of iterations.

    Attributes:
        store: The slots.
        builder: Rebuilds environments.
        states: Where groups save their state, and where a resumed run finds it.
        save_every: Iterations from one checkpoint to the next; 0 for none.
        saves_environments: Whether environments are saved where they can be; otherwise all are rebuilt.
        trust: Whether to use the files of a resumed run even if another user wrote them.
        matchmaker: Says who plays each row; None where the policy that learns plays all.
    """

    store: SlotStore
    builder: GroupBuilder
    states: GroupStates
    save_every: int
    saves_environments: bool
    trust: bool = False
    matchmaker: Matchmaker | None = None
    _to_rebuild: set[int] = field(default_factory=set, init=False)

    def restore(self, group: HostedGroup) -> bool:
        """Restore a group, with x_0 of its slot, from the state saved for its iteration.

        The process that wrote the files has verified them, but another user may have changed the folder since.

        Returns:
            False if there is nothing to restore: the run is new, or the environments were built for this iteration.

        Raises:
            FileNotFoundError: The state is missing.
            MalformedMessageError: The state is damaged.
            UntrustedError: The environments were not pickled by this user's processes.
        """
        if not group.iteration:
            return False
        state, verdict = self.states.read(group.iteration, group.index)
        require_trust(self.states.folder, verdict, "it holds pickled environments", trust=self.trust)
        if state.environments is None:
            return False
        group.environments.restore(state.environments)
        for name, value in state.first.items():
            self.store.arrays[name][group.slot, 0] = value
        if self.store.group_rnn_state is not None:
            self.store.group_rnn_state[group.index] = state.rnn_state
        if self.matchmaker is not None:
            self.matchmaker.resume(group, state.episodes)
        return True

    def save_if_due(self, group: HostedGroup) -> None:
        """Save the state of a group whose slot is full, if a checkpoint follows this iteration.

        Called before the slot is completed: a learner that has all slots of an iteration finds all states as well.
        """
        if not self.save_every or (group.iteration + 1) % self.save_every:
            return
        arrays, last = self.store.arrays, self.store.topology.rollout_length
        environments = group.environments.snapshot() if self.saves_environments else None
        rnn_state = self.store.group_rnn_state
        state = GroupState(
            environments,
            {name: arrays[name][group.slot, last].copy() for name in self.store.carried},
            None if rnn_state is None else rnn_state[group.index].copy(),
            None if self.matchmaker is None else self.matchmaker.episodes(group),
        )
        self.states.write(group.iteration + 1, group.index, state)
        if environments is None:
            self._to_rebuild.add(group.index)

    def rebuild_if_due(self, group: HostedGroup, views: SlotViews) -> bool:
        """Rebuild a group whose environments could not be saved, and write x_0 of its new slot.

        Returns:
            False if the environments were saved, or need not be.
        """
        if group.index not in self._to_rebuild:
            return False
        self._to_rebuild.remove(group.index)
        self.builder.context.ledger.enter(RolloutPhase.BUILDING)
        group.environments.close()
        self.builder.report_failures([group])
        group.environments = self.builder.build(group.index, group.iteration)
        if self.store.group_rnn_state is not None:
            self.store.group_rnn_state[group.index] = 0.0
        self.builder.reset(group, views.observation(group, 0), views.outcome(group, 0))
        if self.matchmaker is not None:
            self.matchmaker.forget(group)
            self.matchmaker.write(group, 0)
        return True

"""The rollout worker in lockstep: whole iterations, and what a run needs that is to go on exactly.

The value of x_T and the action at x_0 of the next slot, which is the same observation, are computed with two versions
of the policy. So V(x_T) is asked for by itself, and a slot is complete before the next one begins::

    x_0 .. x_{T-1}: actions          x_T: value, by the same version          completed --> x_0 of the next iteration

At every checkpoint's iteration a group leaves behind what it needs to go on from there. Environments that cannot be
saved are built anew at that point, in every run, so that a resumed one does nothing else than one that was never
interrupted; x_T of the last slot before it is bootstrapped from as at every slot's end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollmill.envs.views import SavableGroup
from rollmill.roles import RolloutPhase
from rollmill.rollout.worker import HostedGroup, RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.runtime.signed_files import require_trust
from rollmill.specs import ActionSpec
from rollmill.storage.group_states import GroupState, GroupStates
from rollmill.storage.slots import SlotStore


def trusted_state(states: GroupStates, iteration: int, group: int, *, trust: bool) -> GroupState:
    """A group's state, whose environments are about to be unpickled.

    Verified again here, although whoever laid it out has done so: the folder may hold what others have left in it.

    Args:
        states: Where it is.
        iteration: That it belongs to.
        group: Whose it is.
        trust: Whether to use the files of the run even if another user wrote them.

    Raises:
        FileNotFoundError: It is not there.
        MalformedMessageError: It is damaged.
        UntrustedError: This user's processes did not pickle the environments.
    """
    state, verdict = states.read(iteration, group)
    require_trust(states.folder, verdict, "it holds pickled environments", trust=trust)
    return state


class LockstepRolloutWorker(RolloutWorker):
    """Steps its groups through iterations.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots; each group has its own.
        worker: Which rollout worker this is.
        make_group: Builds the environments of a group, given its index and the iteration that they are to begin with.
        action: The action spec.
        random_steps: How many steps with random actions a group takes after it was built, given its index.
        random: The stream of a group's random actions.
        states: Where groups leave what they need to go on; and find it, if the run goes on.
        first_iteration: Where the run begins, or goes on.
        save_every: Iterations from one checkpoint to the next; 0 for none.
        saves_environments: Whether environments that can be saved are, or all are built anew.
        trust: Whether to use the files of a resumed run even if another user wrote them.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        worker: int,
        make_group: Callable[[int, int], SavableGroup],
        *,
        action: ActionSpec,
        random_steps: Callable[[int], int],
        random: Callable[[HostedGroup], np.random.Generator],
        states: GroupStates,
        first_iteration: int,
        save_every: int,
        saves_environments: bool,
        trust: bool = False,
    ) -> None:
        """Builds the environments; in a run that goes on, with the state that they had."""
        self._make_group = make_group
        self._states = states
        self._first_iteration = first_iteration
        self._save_every = save_every
        self._saves_environments = saves_environments
        self._trust = trust
        self._to_rebuild: set[int] = set()
        super().__init__(
            context,
            store,
            worker,
            lambda group: make_group(group, first_iteration),
            action=action,
            random_steps=random_steps,
            random=random,
        )

    def _start(self, group: HostedGroup) -> None:
        group.iteration = self._first_iteration
        state = None
        if group.iteration:
            state = trusted_state(self._states, group.iteration, group.index, trust=self._trust)
        if state is None or state.environments is None:
            super()._start(group)
            return
        group.slot = group.pool.free.popleft()
        group.environments.restore(state.environments)
        arrays = self._store.arrays
        for name, value in state.first.items():
            arrays[name][group.slot, 0] = value
        if self._store.group_rnn_state is not None:
            self._store.group_rnn_state[group.index] = state.rnn_state
        self._submit(group)

    def _go_on(self, group: HostedGroup) -> None:
        """The answer has come: a_t, or, where the slot is full, V(x_T) alone."""
        if group.step < self._rollout_length:
            self._step(group)
            self._submit(group)
            return
        if self._save_every and (group.iteration + 1) % self._save_every == 0:
            self._leave_state(group)
        self._complete(group.slot)
        self._begin_or_park(group)

    def _leave_state(self, group: HostedGroup) -> None:
        """Before the slot is completed, so that whoever has all slots of an iteration finds all states, too."""
        arrays, last = self._store.arrays, self._rollout_length
        environments = group.environments.snapshot() if self._saves_environments else None
        rnn_state = self._store.group_rnn_state
        state = GroupState(
            environments,
            {name: arrays[name][group.slot, last].copy() for name in self._store.carried},
            None if rnn_state is None else rnn_state[group.index].copy(),
        )
        self._states.write(group.iteration + 1, group.index, state)
        if environments is None:
            self._to_rebuild.add(group.index)

    def _begin_slot(self, group: HostedGroup, slot: int) -> None:
        group.iteration += 1
        if group.index in self._to_rebuild:
            self._to_rebuild.remove(group.index)
            self._rebuild(group, slot)
        else:
            self._carry_over(group.slot, slot)
        group.slot, group.step = slot, 0
        self._store.group_is_parked[group.index] = False
        self._submit(group)

    def _rebuild(self, group: HostedGroup, slot: int) -> None:
        """Exactly what a run does that goes on from here."""
        self._ledger.enter(RolloutPhase.BUILDING)
        group.environments.close()
        self._report_failures()
        group.environments = self._make_group(group.index, group.iteration)
        if self._store.group_rnn_state is not None:
            self._store.group_rnn_state[group.index] = 0.0
        self._begin_episodes(group, slot)

    def _submit(self, group: HostedGroup) -> None:
        self._store.group_iteration[group.index] = group.iteration
        super()._submit(group)

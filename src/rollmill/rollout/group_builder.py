"""Building the environments of groups, and the start of their first episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import ObservationView, OutcomeView, SavableGroup
from rollmill.roles import RolloutCounter, RolloutPhase
from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec, BoxActions


@dataclass(frozen=True, kw_only=True)
class GroupBuilder:
    """Builds environments and starts their episodes.

    Attributes:
        context: The process's stop flag, ledger and log.
        make_environments: Builds a group's environments, given the group and the iteration that they begin with.
        action: The environment's action, for the random actions of decorrelation.
        box: Conversion of stored numbers to the environment's.
        random_steps: How many steps with random actions a group takes after a reset, given the group.
        random: The stream of these actions, given the group and the iteration.
    """

    context: ChildContext
    make_environments: Callable[[int, int], SavableGroup]
    action: ActionSpec
    box: BoxActions
    random_steps: Callable[[int], int]
    random: Callable[[int, int], np.random.Generator]

    def build(self, group: int, iteration: int) -> SavableGroup:
        """Build the environments that a group begins an iteration with."""
        self.context.ledger.enter(RolloutPhase.BUILDING)  # Entered again for each group: a sign of life.
        return self.make_environments(group, iteration)

    def reset(self, group: HostedGroup, first: ObservationView, scratch: OutcomeView) -> None:
        """Reset a group's environments and decorrelate them by random actions.

        Args:
            group: The group.
            first: Gets the observation after the last random action.
            scratch: Gets outcomes that are not used.
        """
        enter = self.context.ledger.enter
        enter(RolloutPhase.BUILDING)
        group.environments.reset(first)
        enter(RolloutPhase.SIMULATING)
        random = self.random(group.index, group.iteration)
        for _ in range(self.random_steps(group.index)):
            if self.context.stop.is_set():
                break
            actions = random_actions(self.action, first.action_mask, len(first.reset), random, self.box)
            group.environments.step(*actions, first, scratch)
            enter(RolloutPhase.SIMULATING)
        enter(RolloutPhase.BOOKKEEPING)

    def report_failures(self, groups: Iterable[HostedGroup]) -> None:
        """Log and count the environments of these groups that failed and were rebuilt."""
        for group in groups:
            failures = group.environments.failures
            if failures:
                for failure in failures:
                    self.context.log.warning("%s", failure)
                self.context.ledger.add(RolloutCounter.REBUILDS, len(failures))
                failures.clear()

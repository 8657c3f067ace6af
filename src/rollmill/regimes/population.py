"""What population-based training needs from a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollmill.learning.learner import Learner
from rollmill.learning.progress import LearnerSetup
from rollmill.learning.report import LearnerNote
from rollmill.pbt.history import PbtEvent, append_event, cut_history, events_until
from rollmill.pbt.training import PolicyMember, PopulationTraining
from rollmill.regimes.setup import RunSetup
from rollmill.settings.config import Config
from rollmill.settings.live_settings import live_numbers, settings_of_numbers, upper_end
from rollmill.settings.pbt_checks import mutated_numbers


def settings_of_policy(config: Config, policy: int) -> dict[str, str]:
    """Return name -> what the run's settings say about a policy's number (:func:`settings_of_numbers`)."""
    return settings_of_numbers(config.policies[policy], mutated_numbers(config) if config.population.pbt else ())


def member_of(run: RunSetup, policy: int, setup: LearnerSetup) -> PolicyMember | None:
    """Return a policy as a member of its population; None without population-based training."""
    config = run.config
    if setup.progress.results is None:
        return None
    assert config.pbt.start != "auto", "settled when the environment is known"
    values = live_numbers(config.policies[policy])
    policy_config = config.policies[policy]
    most = {name: end for name in values if (end := upper_end(policy_config, name)) < math.inf}
    initial = {name: value for name in mutated_numbers(config) if (value := values[name]) is not None}
    return PolicyMember(
        config.population.names[policy],
        setup.progress,
        setup.progress.results,
        setup.numbers,
        initial,
        config.pbt.start,
        most,
        f"{config.pbt.objective} {config.population.rating}",
    )


def population_training(
    run: RunSetup, setup: LearnerSetup, members: Sequence[PolicyMember], learners: Sequence[Learner]
) -> PopulationTraining:
    """Build it, with a history that goes on from the checkpoints.

    Args:
        run: The run's setup.
        setup: Of the first policy.
        members: One for each policy.
        learners: Likewise; they have restored their checkpoints.
    """
    run_dir = run.run_dir
    for member in members:
        if not member.is_restored:
            # The checkpoint is of a session without population-based training, or there is none.
            member.recorded = events_until(run_dir, member.name, member.progress.agent_steps)
    cut_history(run_dir, {member.name: member.recorded for member in members})

    def record(event: PbtEvent) -> None:
        append_event(run_dir, event)
        setup.context.log.info(event.describe())
        if event.kind == "replaced":
            setup.context.send(LearnerNote(event.describe()))

    return PopulationTraining(
        run.config.pbt,
        members,
        learners,
        seed=run.config.seed,
        rating=lambda policy: learners[policy].rating,
        record=record,
        is_ending=lambda: setup.context.stop.is_set() or setup.run_steps.learned >= setup.plan.total_steps,
    )

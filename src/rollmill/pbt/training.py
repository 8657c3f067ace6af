"""Population-based training in the process that hosts all learners: who is compared when, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.learning.learner import Learner
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.progress import Progress
from rollmill.learning.results import RecentResults
from rollmill.pbt.bandit import Observation, suggested
from rollmill.pbt.config import PbtConfig
from rollmill.pbt.history import EventKind, PbtEvent
from rollmill.pbt.mutation import mutated
from rollmill.pbt.objectives import score
from rollmill.pbt.selection import is_among_best, replacement
from rollmill.runtime.seeds import int_seed


@dataclass
class PolicyMember:
    """A policy of the population. See :class:`rollmill.learning.learner.Member`.

    Attributes:
        name: The policy's name.
        progress: Its counters.
        results: Its newest results, which the trainer adds to.
        numbers: Its numbers that are set.
        initial: Name -> value at the start, of the numbers that are mutated.
        most: Name -> largest value that the algorithm takes, where there is one.
        objective: Names what its score is. What a checkpoint has seen of another objective is left out.
        next_event: Agent steps of the policy at which its next event is due.
        events: Its events so far, from its first numbers on.
        recorded: Lines of the run's history that are its own; more than ``events`` if the population was interrupted
            by a session without population-based training.
        is_restored: Whether a checkpoint had its state.
        score: Its objective at its last event; None before.
        base: The objective that its weights had then: its own, or that of the policy that it continues from.
        seen: What it has seen between events, for the bandit.
    """

    name: str
    progress: Progress
    results: RecentResults
    numbers: LiveNumbers
    initial: Mapping[str, float]
    next_event: int
    most: Mapping[str, float] = field(default_factory=dict)
    objective: str = ""
    events: int = 0
    recorded: int = 0
    is_restored: bool = False
    score: float | None = None
    base: float | None = None
    seen: list[Observation] = field(default_factory=list)

    @property
    def values(self) -> dict[str, float]:
        """The numbers that are mutated, as they are used now."""
        return {name: self.numbers.value(name, value) for name, value in self.initial.items()}

    def set(self, values: Mapping[str, float]) -> None:
        """Use these numbers from now on."""
        self.numbers.set({name: min(value, self.most.get(name, math.inf)) for name, value in values.items()})

    def figures(self) -> dict[str, float | None]:
        """See :class:`rollmill.learning.learner.Member`."""
        numbers = {f"pbt/{name}": value for name, value in self.values.items()}
        return {"pbt/score": self.score, "pbt/generation": float(self.progress.generation), **numbers}

    def state_dict(self) -> dict[str, Any]:
        """See :class:`rollmill.learning.learner.Member`."""
        return {
            "next_event": self.next_event,
            "events": self.events,
            "recorded": self.recorded,
            "score": self.score,
            "objective": self.objective,
            "base": self.base,
            "seen": [[each.event, dict(each.numbers), each.gain] for each in self.seen],
            "results": self.results.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Member`."""
        self.next_event, self.events, self.score = state["next_event"], state["events"], state["score"]
        self.recorded, self.is_restored = state.get("recorded", self.events), True
        if state.get("objective", self.objective) == self.objective:
            self.base, self.seen = state["base"], [Observation(*each) for each in state["seen"]]
        self.results.load_state_dict(state["results"])


class PopulationTraining:
    """Compares the policies, and replaces and mutates them. Not thread-safe.

    Each policy has its events after a number of its own agent steps. Everything that is drawn is keyed by the seed, the
    policy and the number of the event, so that a resumed run draws the same.

    Args:
        config: The settings, without "auto".
        members: The policies.
        learners: Of the same policies.
        seed: The run's seed.
        rating: Returns the rating of a policy; None without matches.
        record: Called with every event.
        is_ending: Whether no further batch is learned from.
    """

    def __init__(
        self,
        config: PbtConfig,
        members: Sequence[PolicyMember],
        learners: Sequence[Learner],
        *,
        seed: int,
        rating: Callable[[int], float | None],
        record: Callable[[PbtEvent], None],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        assert config.every != "auto"
        self._config = config
        self._every = config.every
        self._members = members
        self._learners = learners
        self._seed = seed
        self._rating = rating
        self._record = record
        self._is_ending = is_ending
        for member in members:
            # Limits may have changed since the checkpoint.
            within = {}
            for name, value in member.values.items():
                low, high = config.limits_of(name)
                within[name] = min(max(value, low), high)
            if within != member.values:
                member.set(within)

    def between(self) -> None:
        """Run the events that are due; called when every learner is between two batches."""
        if self._is_ending():
            return  # The last checkpoints would have weights and numbers that are not trained any more.
        for policy, member in enumerate(self._members):
            if not member.events:
                self._begin(policy, member)
            elif member.progress.agent_steps >= member.next_event:
                self._event(policy, member)

    def _begin(self, policy: int, member: PolicyMember) -> None:
        """Give a policy its first numbers."""
        if self._config.vary and policy:
            member.set(mutated(member.values, self._config, self._random(policy, member), rate=1.0))
        self._finish(policy, member, "start", None, {})

    def _event(self, policy: int, member: PolicyMember) -> None:
        """Compare a policy with the others; waits until it has enough results."""
        # Asked first, because all others would be scored before each batch while this one waits.
        if self._score(policy) is None:
            return
        scores = self._scores()
        if len(scores) < 2:
            return
        member.score = scores[policy]
        if member.base is not None and self._config.explore == "pb2":
            member.seen.append(Observation(member.events, member.values, member.score - member.base))
        member.base = member.score
        random = self._random(policy, member)
        # Missed periods are not made up for, and one that is late does not move the others.
        late = member.progress.agent_steps - member.next_event
        member.next_event += self._every * (1 + late // self._every)
        if is_among_best(policy, scores, self._config):
            self._finish(policy, member, "kept", None, scores)
            return
        source = replacement(policy, scores, self._config, random)
        if source is None:
            if self._config.explore == "mutate":
                member.set(mutated(member.values, self._config, random))
            self._finish(policy, member, "mutated" if self._config.explore == "mutate" else "kept", None, scores)
            return
        other = self._members[source]
        self._learners[policy].become(self._learners[source])
        # Only now: what is copied must not undo the mutation.
        member.set(self._explored(member, other, random))
        member.base = scores[source]
        member.results.clear()
        self._finish(policy, member, "replaced", other.name, scores)

    def _explored(self, member: PolicyMember, source: PolicyMember, random: np.random.Generator) -> dict[str, float]:
        """Return the numbers of a policy that continues from another one."""
        if self._config.explore == "mutate":
            return mutated(source.values, self._config, random)
        seen = sorted((each for other in self._members for each in other.seen), key=lambda each: each.event)
        initial = [other.initial for other in self._members]
        return suggested(seen, initial, member.events, self._config, random)

    def _finish(
        self, policy: int, member: PolicyMember, kind: EventKind, source: str | None, scores: Mapping[int, float]
    ) -> None:
        member.events += 1
        member.recorded += 1
        self._record(
            PbtEvent(
                policy=member.name,
                agent_steps=member.progress.agent_steps,
                kind=kind,
                source=source,
                generation=member.progress.generation,
                scores={self._members[other].name: value for other, value in scores.items()},
                numbers=member.values,
            )
        )

    def _scores(self) -> dict[int, float]:
        """Return policy -> objective, of those with enough results."""
        found = {policy: self._score(policy) for policy in range(len(self._members))}
        return {policy: value for policy, value in found.items() if value is not None}

    def _score(self, policy: int) -> float | None:
        return score(self._config.objective, self._members[policy].results, self._rating(policy))

    def _random(self, policy: int, member: PolicyMember) -> np.random.Generator:
        return np.random.default_rng(int_seed(self._seed, f"pbt event {member.events}", policy, bits=63))

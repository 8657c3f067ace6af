"""Events of a population of real learners: replacement, mutation, and what a replaced policy no longer learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.learning.small_learner import ROWS, SLOTS, STEPS, a_learner

from rollmill.learning.learner import Learner
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.on_policy_trainer import OnPolicyTrainer
from rollmill.pbt.config import PbtConfig
from rollmill.pbt.history import PbtEvent
from rollmill.pbt.training import PolicyMember, PopulationTraining
from rollmill.storage.episodes import EpisodeEnd

SAMPLES = STEPS * ROWS
ALWAYS: dict[str, Any] = {
    "objective": "return",
    "window": 2,
    "every": SAMPLES,
    "start": SAMPLES,
    "mutate": ("learning_rate", "adam_beta1", "discount"),
    "mutation_rate": 1.0,
}


class Population:
    """Two policies, each with three complete slots of its first version."""

    def __init__(self, folder: Path, sessions: ExitStack, **settings: Any) -> None:
        self.config = PbtConfig(**{**ALWAYS, **settings})
        self.events: list[PbtEvent] = []
        self.members: list[PolicyMember] = []
        self.learners: list[Learner] = []
        for policy, name in enumerate("ab"):
            numbers = LiveNumbers()
            learner, _, _ = a_learner(folder / name, policy + 1, numbers=numbers, window=2)
            assert learner.progress.results is not None
            assert self.config.start != "auto"
            self.learners.append(learner)
            sessions.enter_context(learner.start())
            self.members.append(
                PolicyMember(
                    name,
                    learner.progress,
                    learner.progress.results,
                    numbers,
                    {"learning_rate": 1e-3, "adam_beta1": 0.9, "discount": 0.99},
                    self.config.start,
                )
            )
        self.training = PopulationTraining(
            self.config, self.members, self.learners, seed=3, rating=lambda policy: None, record=self.events.append
        )

    def trainer(self, policy: int) -> OnPolicyTrainer:
        trainer = self.learners[policy]._trainer
        assert isinstance(trainer, OnPolicyTrainer)
        return trainer

    def optimiser(self, policy: int) -> torch.optim.Optimizer:
        return self.trainer(policy)._update.optimisers[0]

    def weights(self, policy: int) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.trainer(policy)._algorithm.state_dict().items()}

    def learn(self, batches: int) -> None:
        """Let both policies learn from so many batches, one after another."""
        for learner in self.learners:
            wanted = learner.progress.batches + batches
            while learner.progress.batches < wanted:
                assert learner.turn(0.1)

    def finish_episodes(self, *returns: float) -> None:
        for member, value in zip(self.members, returns, strict=True):
            member.results.add([EpisodeEnd(value, 7)] * 2)

    def begin(self, good: float = 5.0, bad: float = 1.0) -> None:
        """Up to the first comparison, after one batch each."""
        self.training.between()
        self.learn(1)
        self.finish_episodes(good, bad)


@pytest.fixture
def population(tmp_path: Path) -> Iterator[Callable[..., Population]]:
    with ExitStack() as sessions:
        yield lambda folder="", **settings: Population(tmp_path / folder, sessions, **settings)


def test_all_but_the_first_begin_with_numbers_of_their_own(population: Callable[..., Population]) -> None:
    scene = population()
    scene.training.between()
    scene.training.between()
    assert [(event.policy, event.kind) for event in scene.events] == [("a", "start"), ("b", "start")]
    first, second = (event.numbers for event in scene.events)
    assert first == {"learning_rate": 1e-3, "adam_beta1": 0.9, "discount": 0.99}
    assert not any(np.isclose(first[name], second[name], rtol=1e-6) for name in first)
    assert scene.members[1].values == second


def test_alike_if_they_are_not_to_vary(population: Callable[..., Population]) -> None:
    scene = population(vary=False)
    scene.training.between()
    assert scene.events[0].numbers == scene.events[1].numbers


@pytest.mark.parametrize(("good", "bad"), [(5.0, 1.0), (-1.0, -5.0)])
def test_a_replaced_policy_has_the_other_s_state_and_mutated_numbers(
    population: Callable[..., Population], good: float, bad: float
) -> None:
    scene = population()
    scene.begin(good, bad)
    scene.members[0].numbers.set({"learning_rate": 2e-3})
    scene.training.between()
    kept, replaced = scene.events[2:]
    assert (kept.policy, kept.kind, kept.source) == ("a", "kept", None)
    assert (replaced.policy, replaced.kind, replaced.source, replaced.generation) == ("b", "replaced", "a", 1)
    assert replaced.scores == {"a": good, "b": bad}
    source, own = scene.weights(0), scene.weights(1)
    assert all(torch.equal(source[name], own[name]) for name in source)
    # The numbers are those of the source, each up or down by the factor, and not those of the replaced policy.
    lr, beta, discount = (replaced.numbers[name] for name in ("learning_rate", "adam_beta1", "discount"))
    assert min(abs(lr - 2.4e-3), abs(lr - 2e-3 / 1.2)) < 1e-12
    assert min(abs(1 - beta - 0.12), abs(1 - beta - 0.1 / 1.2)) < 1e-12
    assert min(abs(1 - discount - 0.012), abs(1 - discount - 0.01 / 1.2)) < 1e-12
    assert not scene.members[1].results.episodes, "its window starts again"
    moments = [scene.optimiser(policy).state_dict()["state"] for policy in (0, 1)]
    assert moments[0]
    for index, of_param in moments[0].items():
        for name, value in of_param.items():
            assert torch.equal(value, moments[1][index][name])
            assert value.data_ptr() != moments[1][index][name].data_ptr(), "each goes on for itself"


def test_mutated_numbers_are_in_force_in_the_optimiser(population: Callable[..., Population]) -> None:
    """Sample Factory loads the source's optimiser state last, whose param groups undo the mutation."""
    scene = population()
    scene.begin()
    scene.training.between()
    numbers = scene.events[-1].numbers
    assert numbers["learning_rate"] != scene.events[2].numbers["learning_rate"]
    scene.learn(1)
    (group,) = scene.optimiser(1).param_groups
    assert group["lr"] == numbers["learning_rate"]
    assert group["betas"] == (numbers["adam_beta1"], 0.999)
    assert scene.trainer(1)._algorithm.config.discount == numbers["discount"]


def test_data_of_the_old_generation_is_dropped(population: Callable[..., Population]) -> None:
    scene = population()
    scene.begin()
    published = scene.learners[1]._published
    scene.training.between()
    assert scene.learners[1]._published == scene.learners[1].version == published + 1
    before = scene.weights(1)
    scene.learn(SLOTS - 1)  # The slots in flight, of version 0.
    kept, replaced = (learner.progress for learner in scene.learners)
    assert (kept.agent_steps, kept.batches) == (SLOTS * SAMPLES, SLOTS)
    assert (replaced.agent_steps, replaced.batches) == (SAMPLES, SLOTS)
    after = scene.weights(1)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(scene.members[0].results.episodes) == 2
    assert not scene.members[1].results.episodes, "episodes of the old generation do not count"
    assert [len(progress.recent_episodes) for progress in (kept, replaced)] == [SLOTS, 0]
    assert [progress.episodes for progress in (kept, replaced)] == [SLOTS, SLOTS]


def test_an_event_waits_for_a_full_window_and_does_not_repeat(population: Callable[..., Population]) -> None:
    scene = population()
    scene.begin()
    scene.members[1].results.clear()
    scene.training.between()
    assert len(scene.events) == 2, "one policy alone cannot be compared"
    scene.finish_episodes(1.0, 1.0)
    scene.training.between()
    scene.training.between()
    assert [event.kind for event in scene.events[2:]] == ["kept", "mutated"]


def test_a_late_event_does_not_move_the_next_one(population: Callable[..., Population]) -> None:
    scene = population()
    scene.begin()
    member, every = scene.members[1], scene.training._every
    member.progress.agent_steps = member.next_event + 2 * every + 3
    due = member.next_event
    scene.finish_episodes(1.0, 1.0)
    scene.training.between()
    assert member.next_event == due + 3 * every


def test_a_restored_population_goes_on_as_it_would_have(population: Callable[..., Population]) -> None:
    one, other = population("one"), population("other")
    one.begin()
    for member, restored in zip(one.members, other.members, strict=True):
        restored.load_state_dict(member.state_dict())
        restored.numbers.load_state_dict(member.numbers.state_dict())
        restored.progress.agent_steps = member.progress.agent_steps
    one.training.between()
    other.training.between()
    assert other.events == one.events[2:]
    assert [member.state_dict() for member in other.members] == [member.state_dict() for member in one.members]


def test_what_was_seen_of_another_objective_is_forgotten(population: Callable[..., Population]) -> None:
    one, other = population("one", explore="pb2"), population("other", explore="pb2")
    one.begin()
    one.training.between()
    state = one.members[0].state_dict()
    assert state["base"] is not None
    for objective, base in ((one.members[0].objective, state["base"]), ("true_objective elo", None)):
        other.members[0].objective = objective
        other.members[0].base, other.members[0].seen = None, []
        other.members[0].load_state_dict(state)
        assert other.members[0].base == base
        assert other.members[0].events == one.members[0].events


def test_numbers_stay_below_what_the_algorithm_takes(population: Callable[..., Population]) -> None:
    member = population().members[1]
    member.most = {"learning_rate": 0.5}
    member.set({"learning_rate": 2.0, "discount": 0.9})
    assert member.values == {"learning_rate": 0.5, "adam_beta1": 0.9, "discount": 0.9}


def test_numbers_of_a_checkpoint_are_brought_into_new_limits(population: Callable[..., Population]) -> None:
    two = population()
    two.members[0].set({"learning_rate": 2e-2})
    config = PbtConfig(**{**ALWAYS, "limits": {"learning_rate": "1e-5,5e-3"}})
    PopulationTraining(config, two.members, two.learners, seed=3, rating=lambda policy: None, record=two.events.append)
    assert two.members[0].values == {"learning_rate": 5e-3, "adam_beta1": 0.9, "discount": 0.99}
    assert two.members[1].values["learning_rate"] == 1e-3


def test_no_event_when_training_ends(population: Callable[..., Population]) -> None:
    scene = population()
    scene.begin()
    scene.training._is_ending = lambda: True
    scene.training.between()
    assert len(scene.events) == 2
    scene.training._is_ending = lambda: False
    scene.training.between()
    assert len(scene.events) == 4


def test_metrics_of_a_member(population: Callable[..., Population]) -> None:
    scene = population()
    scene.begin()
    scene.training.between()
    figures = scene.members[1].figures()
    assert (figures["pbt/score"], figures["pbt/generation"]) == (1.0, 1.0)
    assert figures["pbt/learning_rate"] == scene.events[-1].numbers["learning_rate"]

"""The entropy bonus grows only while a policy is stuck and too certain."""

import math

import pytest

from rollmill.learning.entropy_guard import EntropyGuard, least_entropy
from rollmill.specs import ActionSpec, BoxHead, CategoricalHead
from rollmill.storage.episodes import EpisodeEnd

CHOICES = ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete")
FIRST = math.log(3)


def guard_that_saw(returns: list[float], floor: float = 0.5, action: ActionSpec = CHOICES) -> EntropyGuard:
    guard = EntropyGuard(action, floor)
    guard.update(FIRST)
    episodes = [EpisodeEnd(value, 10) for value in returns]
    guard.observe(episodes, episodes[-100:])
    return guard


def test_the_bonus_grows_while_all_returns_are_the_worst_and_the_policy_is_certain() -> None:
    guard = guard_that_saw([-500.0] * 100)
    assert guard.coefficient(0.0) == 0.0
    weights = []
    for _ in range(20):
        guard.update(0.01)
        weights.append(guard.coefficient(0.0))
    assert weights == sorted(weights)
    assert weights[0] == pytest.approx(1.5e-3)
    assert weights[-1] == 0.3
    assert guard.coefficient(0.5) == 0.5, "a user's larger bonus is kept"
    # Uncertain again: the bonus falls back to the preset's.
    for _ in range(20):
        guard.update(FIRST)
    assert guard.coefficient(0.01) == 0.01


@pytest.mark.parametrize(
    "returns",
    [
        [-500.0] * 99,  # too few
        [-500.0] * 99 + [-480.0],  # they differ
        [9.0] + [500.0] * 100,  # solved: there were worse ones
    ],
)
def test_bonus_stays_for_a_certain_policy_that_is_not_stuck(returns: list[float]) -> None:
    guard = guard_that_saw(returns)
    guard.update(0.01)
    assert guard.coefficient(0.01) == 0.01


def test_a_success_resets_the_bonus() -> None:
    guard = guard_that_saw([-500.0] * 100)
    for _ in range(10):
        guard.update(0.01)
    success = EpisodeEnd(-300.0, 10)
    guard.observe([success], [*[EpisodeEnd(-500.0, 10)] * 99, success])
    assert not guard.is_stuck
    for _ in range(20):
        guard.update(0.01)
    assert guard.coefficient(0.01) == 0.01


def test_gaussian_floor_is_half_of_the_initial_deviation() -> None:
    head = BoxHead(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    guard = EntropyGuard(ActionSpec(heads=(head,), structure="box"), 0.5)
    guard.update(2.0)
    guard.observe([], [EpisodeEnd(0.0, 10)] * 100)
    guard.update(2.0 + 2 * math.log(0.6))
    assert guard.coefficient(0.01) == 0.01
    guard.update(2.0 + 2 * math.log(0.4))
    assert guard.coefficient(0.01) > 0.01


def test_a_floor_of_zero_switches_it_off() -> None:
    guard = guard_that_saw([-500.0] * 100, floor=0.0)
    guard.update(0.0)
    assert guard.coefficient(0.01) == 0.01
    assert not guard.is_asking


def test_resumes_from_its_state() -> None:
    guard = guard_that_saw([-500.0] * 100)
    guard.update(0.01)
    other = EntropyGuard(CHOICES, 0.5)
    other.load_state_dict(guard.state_dict())
    for each in (guard, other):
        each.update(0.01)
    assert other.coefficient(0.01) == guard.coefficient(0.01)
    assert other.state_dict() == guard.state_dict()


@pytest.mark.parametrize("solved", [True, False])
def test_a_run_of_an_older_version_is_not_stuck_before_it_saw_a_worse_return(solved: bool) -> None:
    """Its returns, all equal, may or may not be its worst."""
    guard = EntropyGuard(CHOICES, 0.5)
    guard.resume_without_state()
    guard.update(FIRST)
    same = [EpisodeEnd(500.0, 10)] * 100
    guard.observe([], same)
    assert not guard.is_stuck
    guard.observe(same, same)
    assert not guard.is_stuck
    resumed = EntropyGuard(CHOICES, 0.5)
    resumed.load_state_dict(guard.state_dict())
    for each in (guard, resumed):
        each.observe([EpisodeEnd(480.0, 10)], [*same[1:], EpisodeEnd(480.0, 10)])
        assert not each.is_stuck
        last = [EpisodeEnd(500.0 if solved else 480.0, 10)] * 100
        each.observe(last, last)
        assert each.is_stuck is not solved


def test_state_of_an_older_version_with_different_returns_is_used_at_once() -> None:
    guard = EntropyGuard(CHOICES, 0.5)
    guard.resume_without_state()
    guard.observe([], [*[EpisodeEnd(-500.0, 10)] * 99, EpisodeEnd(-480.0, 10)])
    worst = [EpisodeEnd(-500.0, 10)] * 100
    guard.observe(worst, worst)
    assert guard.is_stuck


@pytest.mark.parametrize("base", [0.0, 0.01, 0.3, 1.0])
def test_bonus_falls_as_soon_as_the_policy_explores(base: float) -> None:
    guard = guard_that_saw([-500.0] * 100)
    for _ in range(100):
        guard.update(0.01, base)
    assert guard.coefficient(base) == max(base, EntropyGuard.MOST)
    guard.update(FIRST, base)
    assert guard.coefficient(base) == pytest.approx(max(base, EntropyGuard.MOST / EntropyGuard.FACTOR))


def test_a_share_of_deviations_is_a_drop_in_nats() -> None:
    box = BoxHead(shape=(3,), low=(-1.0,) * 3, high=(1.0,) * 3)
    assert least_entropy(ActionSpec(heads=(box,), structure="box"), -2.0, 0.5) == pytest.approx(-2 + 3 * math.log(0.5))
    assert least_entropy(CHOICES, 1.0, 0.5) == 0.5

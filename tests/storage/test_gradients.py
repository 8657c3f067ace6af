"""The exchange of gradients: turns, the bound on staleness, and names of statistics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage import gradients
from rollmill.storage.gradients import GradientExchange


def exchange_of(num_learners: int, size: int = 3) -> GradientExchange:
    layout = ArenaLayout()
    gradients.add_to_layout(layout, num_learners=num_learners, size=size)
    return GradientExchange(Arena.create(layout, poison=True), num_learners, create=True)


def test_turns_and_submissions() -> None:
    exchange = exchange_of(2)
    assert exchange.wait_for_turn(1, 0.0)
    assert not exchange.wait_for_turn(1, 0.0), "one gradient at a time"
    exchange.announce(1, 7)
    exchange.announce(1, 8)
    exchange.submit(1, 8, 0b101)
    assert exchange.collect(0.0) == [(1, 0b101)]
    assert exchange.version_of(1) == 8
    exchange.give_back(1)
    assert exchange.wait_for_turn(1, 0.0)


def test_turns_go_to_the_oldest_gradient() -> None:
    exchange = exchange_of(3)
    turn = partial(exchange.next_turn, max_staleness=4)
    assert turn({}, version=7) is None
    exchange.announce(2, 5)
    exchange.announce(0, 6)
    exchange.announce(1, 7)
    assert turn({0, 1}, version=7) == 0, "gradient 2 may wait for two more"
    assert turn({0, 1}, version=9) is None, "2 would be too old"
    assert turn({0, 1, 2}, version=9) == 2
    assert turn({1}, version=8) == 1
    assert turn({1}, version=9) is None
    exchange.give_back(2)
    assert turn({1}, version=9) == 1, "learner 0 is next"
    assert turn({1}, version=10) is None


def worst_staleness(*, learners: int, bound: int, slow: int, seed: int) -> int:
    """Simulate a server and learners, some of them slow, in random order; return the worst staleness."""
    random, exchange = np.random.default_rng(seed), exchange_of(learners)
    version, worst = 0, 0
    waiting: set[int] = set()
    begun: dict[int, int] = {}

    def gradients_of(learner: int) -> Iterator[None]:
        while True:
            newest = version
            yield
            exchange.announce(learner, newest)
            yield
            begun[learner] = version
            exchange.announce(learner, version)
            for _ in range(40 if learner < slow else random.choice([1, 1, 1, 10])):
                yield
            waiting.add(learner)
            while learner in waiting:
                yield

    at_work = [gradients_of(i) for i in range(learners)]
    for _ in range(2000):
        next(at_work[random.integers(learners)])
        while (i := exchange.next_turn(waiting, version=version, max_staleness=bound)) is not None:
            waiting.remove(i)
            worst = max(worst, version - begun[i])
            version += 1
            assert exchange.wait_for_turn(i, 0.0)
            exchange.give_back(i)
    assert version > 20, "deadlock"
    return worst


@pytest.mark.parametrize(("learners", "bound"), [(2, 1), (2, 4), (3, 2), (3, 6), (4, 3), (8, 7), (8, 16)])
def test_gradients_are_never_too_old_and_progress_is_guaranteed(learners: int, bound: int) -> None:
    runs = [worst_staleness(learners=learners, bound=bound, slow=i % learners, seed=i) for i in range(10)]
    assert max(runs) == bound


def test_names_of_statistics() -> None:
    exchange = exchange_of(2)
    assert exchange.statistic_names(0) == []
    exchange.name_statistics(0, ["a", "loss/b", "c"])
    exchange.name_statistics(1, ["d"])
    assert exchange.statistic_names(0) == ["a", "loss/b", "c"]
    exchange.name_statistics(0, ["a", "c"])
    assert exchange.statistic_names(0) == ["a", "c"]
    assert exchange.statistic_names(1) == ["d"]
    with pytest.raises(ValueError, match="32 at most"):
        exchange.name_statistics(1, [str(i) for i in range(33)])

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from rollmill.learning.clock import TrainingClock
from rollmill.learning.config import FixedSchedule, KlSchedule, OptimiserConfig
from rollmill.learning.schedules import (
    Constant,
    KLAdaptive,
    Linear,
    Points,
    Schedule,
    coefficient_schedule,
    learning_rate_schedule,
)


def test_linear_is_exact_at_the_start_the_half_and_the_end() -> None:
    schedule = Linear(2.5e-4, 10_000_000)
    assert schedule.value(0) == 2.5e-4
    assert schedule.value(5_000_000) == 1.25e-4
    assert schedule.value(10_000_000) == 0.0
    assert schedule.value(10_000_001) == 0.0, "a run may overshoot by part of a batch"


def test_linear_with_a_final_value_ends_exactly_there() -> None:
    schedule = Linear(0.1, 3, final=0.3)
    assert schedule.value(0) == 0.1
    assert schedule.value(3) == 0.3


def test_linear_equals_the_line_in_exact_arithmetic() -> None:
    rng = random.Random(1)
    for _ in range(200):
        initial, final, total = rng.uniform(1e-6, 1), rng.uniform(0, 1), rng.randrange(1, 10**10)
        step = rng.randrange(0, total + 1)
        exact = Fraction(initial) + (Fraction(final) - Fraction(initial)) * Fraction(step, total)
        assert Linear(initial, total, final).value(step) == pytest.approx(float(exact), rel=1e-14)


def test_linear_rejects_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Linear(1.0, 0)
    with pytest.raises(ValueError, match="agent_steps=-1"):
        Linear(1.0, 10).value(-1)


def test_kl_rule_step_by_step() -> None:
    schedule = KLAdaptive(1e-3, target=0.01, minimum=4e-4, maximum=3e-3)
    seen = []
    for kl in (0.0201, 0.0201, 0.0201, 0.02, 0.005, 0.0, 0.0049, -1e-5, 0.001, 0.001, 0.001, 0.001):
        schedule.update(kl)
        seen.append(schedule.value(0))
    low, high = 4e-4, 3e-3
    third = 1e-3 / 1.5
    assert seen == pytest.approx(
        [third, third / 1.5, low, low, low, low, 6e-4, 9e-4, 1.35e-3, 2.025e-3, high, high], rel=1e-12
    )


def test_a_kl_that_is_no_number_raises_and_changes_nothing() -> None:
    schedule = KLAdaptive(1e-3, target=0.01, minimum=1e-6, maximum=1e-2)
    with pytest.raises(ValueError, match="not finite"):
        schedule.update(float("nan"))
    assert schedule.value(0) == 1e-3


def test_an_estimate_that_overflows_is_above_the_target() -> None:
    schedule = KLAdaptive(1e-3, target=0.01, minimum=1e-6, maximum=1e-2)
    schedule.update(float("inf"))
    assert schedule.value(0) == pytest.approx(1e-3 / 1.5)


def test_kl_schedule_rejects_invalid_bounds_and_target() -> None:
    with pytest.raises(ValueError, match="minimum <= initial <= maximum"):
        KLAdaptive(1.0, target=0.01, minimum=1e-6, maximum=1e-2)
    with pytest.raises(ValueError, match="kl_target=0"):
        KLAdaptive(1e-3, target=0, minimum=1e-6, maximum=1e-2)


@pytest.mark.parametrize("kind", ["constant", "linear", "kl", "0:1e-3,8192:2e-3,30000:0"])
def test_resuming_in_the_middle_equals_never_stopping(kind: str) -> None:
    schedule = KlSchedule() if kind == "kl" else FixedSchedule(name=kind)
    config = OptimiserConfig(schedule=schedule, learning_rate=1e-3)
    rng = random.Random(7)
    kls = [rng.expovariate(1 / KlSchedule().kl_target) for _ in range(40)]

    def run(schedule: Schedule, first: int, last: int) -> list[float]:
        values = []
        for i in range(first, last):
            values.append(schedule.value(i * 1024))
            schedule.update(kls[i])
        return values

    whole = run(learning_rate_schedule(config, 40 * 1024), 0, 40)
    before = learning_rate_schedule(config, 40 * 1024)
    first_half = run(before, 0, 20)
    after = learning_rate_schedule(config, 40 * 1024)
    after.load_state_dict(before.state_dict())
    assert first_half + run(after, 20, 40) == whole
    assert len(set(whole)) > 5 or kind == "constant"


def test_another_kind_of_schedule_starts_afresh_on_resume() -> None:
    kl = KLAdaptive(1e-3, target=0.01, minimum=1e-6, maximum=1e-2)
    kl.load_state_dict(Linear(5e-3, 100).state_dict())
    assert kl.value(0) == 1e-3
    linear = Linear(5e-3, 100)
    linear.load_state_dict(kl.state_dict())
    assert linear.value(50) == 2.5e-3


def test_resumed_kl_value_is_kept_within_the_new_bounds() -> None:
    old = KLAdaptive(9e-3, target=0.01, minimum=1e-6, maximum=1e-2)
    new = KLAdaptive(1e-4, target=0.01, minimum=1e-6, maximum=1e-3)
    new.load_state_dict(old.state_dict())
    assert new.value(0) == 1e-3


def test_coefficients() -> None:
    assert coefficient_schedule("linear", 0.01, 1000).value(250) == 0.0075
    assert coefficient_schedule("constant", 0.01, 0) == Constant(0.01)
    assert Constant(0.01).value(10**9) == 0.01


def test_points_are_joined_by_straight_lines_and_constant_outside() -> None:
    config = OptimiserConfig(schedule=FixedSchedule(name="1000:3e-4, 2e3:1e-4 ,4_000:0"))
    schedule = learning_rate_schedule(config, 10**9)
    assert schedule == Points(((1000, 3e-4), (2000, 1e-4), (4000, 0.0)))
    seen = [schedule.value(steps) for steps in (0, 1000, 1500, 2000, 3000, 4000, 10**12)]
    assert seen == pytest.approx([3e-4, 3e-4, 2e-4, 1e-4, 5e-5, 0.0, 0.0], rel=1e-12)


def test_linear_schedule_ends_at_the_first_limit() -> None:
    now = 50.0
    clock = TrainingClock(10.0, now=lambda: now)
    line = Linear(1.0, 1000, share_of_time=clock.share)
    now = 80.0
    assert line.value(0) == 1.0, "startup does not count"
    clock.start()
    now = 84.0
    assert line.value(100) == pytest.approx(0.6)
    assert line.value(900) == pytest.approx(0.1)
    assert line.value(1000) == 0.0
    now = 91.0
    assert line.value(500) == 0.0


def test_resumed_linear_schedule_over_seconds_continues() -> None:
    now = 0.0
    first = TrainingClock(10.0, now=lambda: now)
    first.start()
    now = 4.0
    saved = first.seconds
    now = 1000.0  # of another session, on another machine
    second = TrainingClock(10.0, now=lambda: now)
    second.restore(saved)
    line = Linear(1.0, 10**9, share_of_time=second.share)
    assert line.value(0) == pytest.approx(0.6)
    second.start()
    now = 1003.0
    assert line.value(0) == pytest.approx(0.3)


def test_without_a_limit_time_does_not_count() -> None:
    clock = TrainingClock(now=iter(range(100)).__next__)
    clock.start()
    assert clock.share() == 0.0
    assert clock.seconds > 0

"""What a run's rows show of it not learning is said once; runs that learn are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.reporting.health import Health

TOTAL = 100_000


def row(steps: int, **values: Any) -> dict[str, Any]:
    healthy = {
        "agent_steps": steps,
        "episodes": steps // 100,
        "episode_return": steps / 1000,
        "episode_return_std": 3.0,
        "loss/entropy": 1.0,
        "loss/approx_kl": 0.01,
        "loss/value": 0.2,
    }
    return {**healthy, **{name.replace("loss_", "loss/"): value for name, value in values.items()}}


def warnings_of(rows: list[dict[str, Any]], num_rows: int = 8, **options: Any) -> list[str]:
    health = Health(TOTAL, num_rows, **options)
    return [warning for each in rows for warning in health.warnings(each)]


STEPS = range(1000, TOTAL + 1, 1000)


def test_a_run_that_learns_is_not_warned() -> None:
    # Its policy may become certain, its value loss small.
    rows = [row(steps, loss_entropy=1.0 - steps / TOTAL * 0.999, loss_value=1000 / steps) for steps in STEPS]
    assert warnings_of(rows, least_entropy=lambda first: 0.02 * first) == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"episodes": 0, "episode_return": None, "episode_return_std": None}, "no episode has ended"),
        (
            {"episode_return": 0.0, "episode_return_std": 0.0},
            "in every row the last 100 episodes had the same return, 0",
        ),
        ({"loss_approx_kl": 2.0}, "2 nats .* Try a lower learner.learning_rate"),
        ({"actions_at_bound": 0.99}, "99% of the actions' numbers are at a bound"),
    ],
)
def test_each_sign_is_said_once_with_advice(values: dict[str, Any], says: str) -> None:
    found = warnings_of([row(steps, **values) for steps in STEPS])
    assert len(found) == 1
    assert found[0].startswith("warning at ")
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(found[0])


def test_a_policy_that_became_certain_without_better_returns_is_named() -> None:
    rows = [row(steps, episode_return=-499.0, loss_entropy=max(0.001, 1.0 - steps / 20_000)) for steps in STEPS]
    assert warnings_of(rows) == [], "an off-policy algorithm has a target of its own"
    (found,) = warnings_of(rows, least_entropy=lambda first: 0.02 * first)
    assert "entropy fell from 0.95 to 0.001 nats, but returns have not risen (-499, -499 at first)" in found


def test_a_value_loss_that_diverges_is_named() -> None:
    rows = [row(steps, loss_value=0.2 if steps < 50_000 else 0.2 * (steps / 1000)) for steps in STEPS]
    rows += [row(TOTAL + steps, loss_value=1000.0) for steps in range(1000, 6000, 1000)]
    (found,) = warnings_of(rows)
    assert "5,000 times what it was at first" in found


def test_single_rows_are_no_sign() -> None:
    rows = [row(steps, loss_approx_kl=5.0 if steps % 4000 == 0 else 0.01) for steps in STEPS]
    rows += [row(TOTAL + 1000, loss_approx_kl=None)]
    assert warnings_of(rows) == []


def test_many_environments_beside_each_other_have_time_for_their_first_episodes() -> None:
    nothing = {"episodes": 0, "episode_return": None, "episode_return_std": None}
    early = [row(steps, **nothing) for steps in STEPS if steps < TOTAL // 2]
    assert warnings_of(early, num_rows=32) == []
    assert len(warnings_of(early, num_rows=4)) == 1


def test_a_solved_run_that_is_resumed_is_not_taken_for_one_that_never_succeeded() -> None:
    """Its returns differed before it was interrupted; since then every episode has the best one."""
    solved = {"episode_return": 500.0, "episode_return_std": 0.0}
    learned = [row(steps) for steps in STEPS if steps <= TOTAL // 2]
    rest = [row(steps, **solved) for steps in STEPS if steps > TOTAL // 2]
    resumed = Health(TOTAL, 8, earlier=learned)
    assert [warning for each in rest for warning in resumed.warnings(each)] == []
    unknown = {"agent_steps": 1000, "episodes": None}  # of another version
    resumed = Health(TOTAL, 8, earlier=[unknown, {}])
    (found,) = [warning for each in rest for warning in resumed.warnings(each)]
    assert "in every row the last 100 episodes had the same return, 500" in found


def test_what_was_said_before_a_resume_is_not_said_again() -> None:
    rows = [row(steps, loss_approx_kl=2.0) for steps in STEPS]
    resumed = Health(TOTAL, 8, earlier=rows[:50])
    assert [warning for each in rows[50:] for warning in resumed.warnings(each)] == []


def test_returns_that_differ_from_row_to_row_differ() -> None:
    rows = [row(steps, episode_return=9.0 if steps < 9000 else 500.0, episode_return_std=0.0) for steps in STEPS]
    assert warnings_of(rows) == []


def test_returns_without_reward_terms_say_nothing() -> None:
    rows = [row(steps, episode_return=0.0, episode_return_std=0.0, loss_entropy=0.01) for steps in STEPS]
    assert warnings_of(rows, least_entropy=lambda first: 2 * first) != []
    assert warnings_of(rows, least_entropy=lambda first: 2 * first, has_reward_terms=True) == []

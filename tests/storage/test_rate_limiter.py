"""The rate limiter: it bounds how far either side is ahead, and never deadlocks."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.rate_limiter import (
    RateLimiter,
    RateLimits,
    add_to_layout,
    damage_of,
    least_error_buffer,
    resumed_limits,
)


def make(**changes):
    layout = ArenaLayout()
    add_to_layout(layout)
    values = {"update_interval": 2.0, "min_size": 10, "error_buffer": 4.0, "total_steps": 100}
    limiter = RateLimiter(Arena.create(layout), RateLimits(**(values | changes)))
    limiter.begin()
    return limiter


@settings(max_examples=50, deadline=None)
@given(
    interval=st.floats(0.05, 300),
    min_size=st.integers(1, 200),
    slack=st.floats(0, 50, allow_subnormal=False),
    total=st.integers(201, 800),
    groups=st.lists(st.integers(1, 17), min_size=1, max_size=5),
    base=st.sampled_from([0, 1000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_order_of_events_stops_a_run_or_lets_a_side_get_ahead(interval, min_size, slack, total, groups, base, seed):
    random = np.random.default_rng(seed)
    rows = max(groups)
    buffer = least_error_buffer(update_interval=interval, group_rows=rows) + slack
    limiter = make(
        update_interval=interval, min_size=min_size, error_buffer=buffer, total_steps=base + total, base=base
    )
    under_way = dict.fromkeys(range(len(groups)), False)
    for _ in range(200_000):
        if limiter.is_done and not any(under_way.values()):
            break
        # Everything that could happen now; one of them does.
        moves = [("draw", 0)] * limiter.may_draw
        for group, is_under_way in under_way.items():
            if is_under_way:
                moves.append(("insert", group))
            elif limiter.try_reserve(groups[group]):
                limiter.insert(0, reserved=groups[group])
                moves.append(("reserve", group))
        assert moves, "both sides wait for each other"
        assert limiter.behind == 0
        move, group = moves[random.integers(len(moves))]
        if move == "draw":
            assert limiter.try_draw()
        elif move == "reserve":
            assert limiter.try_reserve(groups[group])
            under_way[group] = True
        else:
            under_way[group] = False
            limiter.insert(int(random.integers(groups[group] + 1)) or groups[group], reserved=groups[group])
        inserted, drawn = limiter.inserted - base, limiter.drawn
        ahead = inserted - min_size - drawn * interval
        if drawn or inserted >= min_size:
            assert ahead <= max(buffer, rows - 1) + 1e-6 or inserted >= total
            assert ahead >= -buffer - 1e-6
        else:
            assert drawn == 0
    assert limiter.is_done
    assert base + total <= limiter.inserted < base + total + rows
    due = (limiter.inserted - base - min_size) / interval
    assert due - 1 <= limiter.drawn <= due + buffer / interval + 1


def test_what_showed_no_transition_is_not_counted():
    limiter = make()
    assert limiter.try_reserve(8)
    limiter.insert(5, reserved=8)
    assert limiter.inserted == 5
    # 10 + 4 steps may be made before the first batch.
    assert limiter.try_reserve(9)
    assert not limiter.try_reserve(1)


def test_threads_never_overdraw():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Who waits would otherwise spin for milliseconds.
    limiter = make(update_interval=1.0, min_size=1, error_buffer=8.0, total_steps=4_000)
    drawn = [0, 0]

    def learn(index):
        while not limiter.is_done:
            drawn[index] += limiter.try_draw()

    def collect():
        while not limiter.is_full:
            if limiter.try_reserve(4):
                limiter.insert(4, reserved=4)

    threads = [threading.Thread(target=learn, args=(i,)) for i in range(2)]
    threads += [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    sys.setswitchinterval(interval)
    assert sum(drawn) == limiter.drawn
    assert limiter.inserted == 4_000
    assert 3_999 <= limiter.drawn <= 3_999 + 8


@pytest.mark.parametrize(("interval", "rows", "least"), [(1.0, 1, 1.0), (4.0, 8, 6.0)])
def test_the_least_error_buffer(interval, rows, least):
    assert least_error_buffer(update_interval=interval, group_rows=rows) == least


def collect_and_learn(limiter, *, until):
    """One side and the other, until so many steps are inserted and all that may be drawn is."""
    while limiter.inserted < until:
        while limiter.try_draw():
            pass
        assert limiter.try_reserve(1), "both sides wait for each other"
        limiter.insert(1, reserved=1)
    while limiter.try_draw():
        pass


class Session:
    """A run's learner, and the replay in a file that outlives it."""

    def __init__(self, base=0, sgd_steps=0, **changes):
        layout = ArenaLayout()
        add_to_layout(layout)
        self.arena = Arena.create(layout)
        self.saved = sgd_steps
        self.limiter = RateLimiter(self.arena, self.wanted(base=base, **changes))
        self.limiter.begin()
        self.before = self.limiter.learn_from(sgd_steps)

    @staticmethod
    def wanted(**changes):
        values = {"update_interval": 2.0, "min_size": 10, "error_buffer": 4.0, "total_steps": 10_000}
        return RateLimits(**(values | changes))

    @property
    def sgd_steps(self):
        return self.before + self.limiter.drawn

    def go_on(self, *, lost=0, learned=None, **changes):
        """As another process would, from a checkpoint that is so many SGD steps old."""
        saved = (self.sgd_steps if learned is None else learned) - lost
        limiter = RateLimiter(self.arena, resumed_limits(self.arena, self.wanted(**changes)))
        limiter.set(inserted=limiter.inserted, drawn=0)
        self.limiter, self.before = limiter, limiter.learn_from(saved)
        assert self.sgd_steps == saved + limiter.skipped


def test_counts_go_on_with_the_same_limits():
    session = Session()
    collect_and_learn(session.limiter, until=110)
    assert session.sgd_steps == pytest.approx(50, abs=3)
    session.go_on(lost=20)
    collect_and_learn(session.limiter, until=210)
    assert session.sgd_steps == pytest.approx(100, abs=3), "what was lost is caught up with"
    assert session.limiter.held == 210


@pytest.mark.parametrize("lost", [0, 20])
@pytest.mark.parametrize("interval", [0.25, 8.0])
def test_another_update_interval_is_for_what_comes(interval, lost):
    session = Session()
    collect_and_learn(session.limiter, until=110)
    session.go_on(lost=lost, update_interval=interval, error_buffer=10.0)
    collect_and_learn(session.limiter, until=190)
    error = 3 + 10 / interval
    assert session.sgd_steps == pytest.approx(50 + 80 / interval, abs=error)
    session.go_on(update_interval=interval, error_buffer=10.0)
    collect_and_learn(session.limiter, until=270)
    assert session.sgd_steps == pytest.approx(50 + 160 / interval, abs=error)
    session.go_on()
    collect_and_learn(session.limiter, until=370)
    assert session.sgd_steps == pytest.approx(50 + 160 / interval + 50, abs=error + 3)


def test_who_is_killed_while_it_catches_up_keeps_the_replay():
    session = Session()
    collect_and_learn(session.limiter, until=110)
    session.go_on(lost=40, update_interval=8.0, error_buffer=10.0)
    assert session.limiter.drawn < 0
    session.limiter.wait_as_learner(1)
    assert damage_of(session.arena) == ""
    session.go_on(update_interval=8.0, error_buffer=10.0)
    assert session.limiter.learners_waiting == 0
    collect_and_learn(session.limiter, until=190)
    assert session.sgd_steps == pytest.approx(50 + 80 / 8, abs=4)


@pytest.mark.parametrize("changes", [{}, {"update_interval": 8.0, "error_buffer": 10.0}])
def test_batches_that_were_skipped_are_not_due_again(changes):
    session = Session()
    collect_and_learn(session.limiter, until=110)
    learned = session.sgd_steps
    for _ in range(30):
        assert session.limiter.try_reserve(1)
        session.limiter.insert(1, reserved=1)
        session.limiter.skip_batches()
    assert session.limiter.skipped == pytest.approx(15, abs=1)
    session.go_on(**changes, learned=learned)
    assert not session.limiter.may_draw
    assert session.limiter.behind == 0


def test_a_learner_that_catches_up_is_behind_what_the_replay_holds():
    session = Session()
    collect_and_learn(session.limiter, until=110)
    session.go_on(lost=40)
    behind = [session.limiter.behind]
    while session.limiter.try_draw():
        behind.append(session.limiter.behind)
    assert behind[0] == pytest.approx(40 * 2 - 8, abs=8), "less twice the error buffer"
    assert behind == sorted(behind, reverse=True)
    assert behind[-1] == 0


def test_another_minimum_size_applies_only_before_learning_starts():
    session = Session(min_size=100)
    collect_and_learn(session.limiter, until=60)
    session.go_on(min_size=80)
    assert session.limiter.limits.min_size == 80
    collect_and_learn(session.limiter, until=180)
    assert session.sgd_steps == pytest.approx(50, abs=3)
    session.go_on(min_size=1000)
    collect_and_learn(session.limiter, until=280)
    assert session.sgd_steps == pytest.approx(100, abs=3)


def test_preloaded_steps_count_under_other_limits_too():
    session = Session(min_size=1000)
    session.limiter.remember(session.wanted(min_size=1000), session.wanted(min_size=400))
    session.go_on(min_size=1000, update_interval=4.0)
    assert session.limiter.limits.min_size == 400
    session.go_on(min_size=500, update_interval=4.0)
    assert session.limiter.limits.min_size == 0


def test_a_smaller_minimum_size_is_for_what_comes():
    session = Session(min_size=100)
    collect_and_learn(session.limiter, until=90)
    session.go_on(min_size=20)
    assert session.limiter.limits.batches_due(session.limiter.inserted) == 0, (
        "of the steps that were made under the old one, none is due"
    )
    collect_and_learn(session.limiter, until=190)
    assert session.sgd_steps == pytest.approx(50, abs=3)


def test_a_recreated_replay_is_counted_from_its_base():
    session = Session(base=1000, sgd_steps=495)
    assert session.before == 495
    collect_and_learn(session.limiter, until=1110)
    assert session.sgd_steps == pytest.approx(495 + 50, abs=3)
    assert session.limiter.held == 110
    session.go_on()
    collect_and_learn(session.limiter, until=1210)
    assert session.sgd_steps == pytest.approx(495 + 100, abs=3)
    assert session.limiter.held == 210


def test_steps_that_have_left_the_replay_are_not_held():
    session = Session()
    collect_and_learn(session.limiter, until=110)
    inserted, held = session.limiter.inserted, session.limiter.held
    session.limiter.forget(30)
    assert session.limiter.held == held - 30
    assert session.limiter.inserted == inserted


def test_more_steps_that_have_left_than_were_inserted_are_damage():
    session = Session()
    collect_and_learn(session.limiter, until=110)
    session.limiter.forget(-500)  # steps that were preloaded
    assert damage_of(session.arena) == ""
    session.limiter.forget(500 + session.limiter.inserted + 1)
    assert "its counters are" in damage_of(session.arena)


def make_all(policies, **changes):
    layout = ArenaLayout()
    add_to_layout(layout, policies)
    arena = Arena.create(layout)
    values = {"update_interval": 2.0, "min_size": 10, "error_buffer": 4.0, "total_steps": 100}
    limits = RateLimits(**(values | changes))
    limiters = [RateLimiter(arena, limits, policy=policy, policies=policies) for policy in range(policies)]
    for limiter in limiters:
        limiter.begin()
    assert damage_of(arena, policies) == ""
    return limiters


def reserve(limiters, rows):
    """As :meth:`rollmill.storage.replay.ReplayStore.try_reserve`."""
    for policy, count in enumerate(rows):
        if count and not limiters[policy].try_reserve(count, with_others=sum(rows[:policy])):
            for earlier in range(policy):
                limiters[earlier].release(rows[earlier])
            return False
    return True


@settings(max_examples=50, deadline=None)
@given(
    policies=st.integers(2, 4),
    interval=st.floats(0.05, 30),
    min_size=st.integers(1, 60),
    total=st.integers(201, 800),
    rows=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_policies_that_share_groups_never_stop_each_other(policies, interval, min_size, total, rows, seed):
    """Groups are played by random policies, some of which get no steps; not every step that is made counts."""
    random = np.random.default_rng(seed)
    buffer = least_error_buffer(update_interval=interval, group_rows=rows)
    limiters = make_all(policies, update_interval=interval, min_size=min_size, error_buffer=buffer, total_steps=total)
    shares = random.dirichlet(np.full(policies, 0.3))
    parked = [random.multinomial(rows, shares).tolist() for _ in range(3)]
    under_way = []
    for _ in range(200_000):
        if all(limiter.is_done for limiter in limiters) and not under_way:
            break
        moves = [("draw", limiter) for limiter in limiters if limiter.may_draw]
        for group in list(parked):
            if reserve(limiters, group):
                parked.remove(group)
                under_way.append(group)
        moves += [("insert", group) for group in under_way]
        assert moves, "the run stands still"
        move, what = moves[random.integers(len(moves))]
        if move == "draw":
            assert what.try_draw()
            continue
        under_way.remove(what)
        for limiter, count in zip(limiters, what, strict=True):
            limiter.insert(int(random.integers(count // 2, count + 1)), reserved=count)
        parked.append(random.multinomial(rows, shares).tolist())
    assert total <= sum(limiter.inserted for limiter in limiters) < total + rows * 3
    for limiter in limiters:
        due = limiter.limits.batches_due(limiter.inserted)
        assert due <= limiter.drawn <= due + buffer / interval + 1


def test_the_last_step_of_a_run_is_made_by_all_policies_of_its_group():
    limiters = make_all(2, error_buffer=1000.0, total_steps=21)
    assert reserve(limiters, [10, 10])
    for limiter in limiters:
        limiter.insert(10, reserved=10)
    assert not limiters[0].is_full
    assert reserve(limiters, [2, 2]), "one step is left, which a whole group makes"
    assert not reserve(limiters, [1, 1])
    for limiter in limiters:
        limiter.insert(2, reserved=2)
    assert [limiter.inserted for limiter in limiters] == [12, 12]
    assert all(limiter.is_full for limiter in limiters)
    assert [limiter.inserted_by_all for limiter in limiters] == [24, 24]


def test_a_policy_that_waits_for_its_learner_releases_what_others_have_reserved():
    first, second = limiters = make_all(2)
    assert reserve(limiters, [0, 14])
    second.insert(14, reserved=14)
    assert not reserve(limiters, [4, 4])
    assert reserve(limiters, [4, 0])
    first.insert(4, reserved=4)
    assert second.try_draw()
    assert second.try_draw()
    assert reserve(limiters, [4, 4])
    assert not first.may_draw, "each has a minimum size of its own"


def test_a_resumed_policy_keeps_limits_of_its_own():
    layout = ArenaLayout()
    add_to_layout(layout, 2)
    arena = Arena.create(layout)
    asked = RateLimits(update_interval=2.0, min_size=10, error_buffer=4.0, total_steps=100)
    for policy, base in enumerate((30, 7)):
        limits = RateLimits(update_interval=2.0, min_size=10, error_buffer=4.0, total_steps=100, base=base)
        limiter = RateLimiter(arena, limits, policy=policy, policies=2)
        limiter.begin()
        limiter.remember(asked, limits)
    assert [resumed_limits(arena, asked, policy=policy, policies=2).base for policy in range(2)] == [30, 7]
    arena["replay/limits/1"][:] = -1
    assert "an update interval of -1" in damage_of(arena, 2)

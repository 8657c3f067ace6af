"""Steps in order against a literal replay that keeps every step of every environment in lists."""

from typing import NamedTuple

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay

DISCOUNT = 0.9
GARBAGE = -7  # given as next observation where it must not be read
FIELDS = {
    "obs": {"image": ((5, 3), "uint8"), "id": ((), "int64")},
    "action": ((2,), "int32"),
    "reward": ((), "float32"),
}


class Step(NamedTuple):
    obs: int
    reward: float
    terminated: bool
    truncated: bool
    last_obs: int  # of the episode, where it ends here
    ticket: int


class World:
    """One environment, and all that it ever showed; None stands where there was no step."""

    def __init__(self):
        self.steps: list[Step | None] = []

    def transition(self, t, n):
        """(reward, discount, terminated, bootstrap's observation) of step t; None while it is not whole."""
        if self.steps[t] is None:
            return None
        total, discount = 0.0, 1.0
        for k in range(n):
            if t + k >= len(self.steps) or (step := self.steps[t + k]) is None:
                return None
            total += discount * step.reward
            discount *= DISCOUNT
            if step.terminated:
                return total, 0.0, True, step.last_obs
            if step.truncated:
                return total, discount, False, step.last_obs
        if t + n >= len(self.steps) or self.steps[t + n] is None:
            return None
        return total, discount, False, self.steps[t + n].obs


class Case(NamedTuple):
    n: int
    num_envs: int
    capacity: int
    views: int
    has_invalid: bool


CASES = [
    Case(1, 1, 5, 1, False),
    Case(1, 3, 40, 1, True),
    Case(3, 4, 61, 1, False),
    Case(3, 2, 50, 3, True),
    Case(5, 1, 12, 1, True),
    Case(2, 2, 12, 4, False),  # rows of one view go while another's step waits
]


def image_of(ids):
    return (np.asarray(ids)[:, None, None] * np.arange(1, 16).reshape(5, 3) % 251).astype(np.uint8)


def make_step(random, worlds, ids, has_invalid):
    """Arrays of a step of all these worlds, and what the worlds make of it once tickets are known."""
    count = len(worlds)
    kind = random.random(count)
    terminated, truncated = kind < 0.1, (kind > 0.07) & (kind < 0.2)
    valid = random.random(count) > 0.1 if has_invalid else np.ones(count, bool)
    obs = np.array([next(ids) for _ in worlds])
    last = np.where(terminated | truncated, [next(ids) for _ in worlds], GARBAGE)
    reward = random.normal(size=count).astype(np.float32)
    arrays = {
        "obs": {"image": image_of(obs), "id": obs},
        "action": np.stack([obs, -obs], 1).astype(np.int32),
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "next_obs": {"image": image_of(last), "id": last},
    }
    if has_invalid:
        arrays["valid"] = valid

    def record(given):
        for i, world in enumerate(worlds):
            if not valid[i]:
                world.steps.append(None)
                continue
            outcome = (float(reward[i]), bool(terminated[i]), bool(truncated[i]), int(last[i]))
            world.steps.append(Step(int(obs[i]), *outcome, given))
            given += 1
        return given + int((valid & (terminated | truncated)).sum())

    return arrays, record


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("seed", range(3))
def test_what_is_live_and_what_is_drawn_are_those_of_a_literal_replay(case, seed):
    random = np.random.default_rng(seed)
    replay = PrioritizedReplay(
        case.capacity, FIELDS, num_envs=case.num_envs, n_step=case.n, discount=DISCOUNT, seed=seed, alpha=1.0
    )
    views = [replay] + [replay.view() for _ in range(case.views - 1)]
    worlds = [[World() for _ in range(case.num_envs)] for _ in views]
    ids = iter(range(1, 10**9))
    given = 0
    drawn_transitions = 0
    for _ in range(150):
        which = int(random.integers(len(views)))
        arrays, record = make_step(random, worlds[which], ids, case.has_invalid)
        views[which].add(**arrays)
        given = record(given)
        live = {}
        for world in (world for of_view in worlds for world in of_view):
            for t, step in enumerate(world.steps):
                if step is not None and step.ticket >= given - case.capacity:
                    whole = world.transition(t, case.n)
                    if whole is not None:
                        live[step.ticket] = (step, whole)
        assert len(replay) == len(live)
        if not live:
            with pytest.raises(ValueError, match="nothing to sample yet"):
                replay.sample(3)
            continue
        batch = views[int(random.integers(len(views)))].sample(12)
        for i, ticket in enumerate(batch.tickets.tolist()):
            step, (reward, discount, terminated, then) = live[ticket]
            drawn_transitions += 1
            assert batch["obs/id"][i] == step.obs
            np.testing.assert_array_equal(batch["obs/image"][i], image_of([step.obs])[0])
            np.testing.assert_array_equal(batch["action"][i], [step.obs, -step.obs])
            assert batch["reward"][i] == pytest.approx(reward, abs=1e-5)
            assert batch["discount"][i] == pytest.approx(discount, abs=1e-6)
            assert batch["terminated"][i] == terminated
            assert batch["next_obs/id"][i] == then
            np.testing.assert_array_equal(batch["next_obs/image"][i], image_of([then])[0])
        if random.random() < 0.5:
            assert replay.update_priorities(batch, random.normal(size=12)) == 0
        assert replay._ring.verify()
    assert drawn_transitions > 1000


def test_every_live_step_is_drawn_and_no_last_observation_ever_is():
    replay = PrioritizedReplay(64, {"obs": ((), "int64"), "reward": ((), "float32")}, seed=1)
    for t in range(20):
        replay.add(obs=t, reward=0.0, terminated=t % 4 == 3, next_obs=1000 + t)
    assert len(replay) == 20  # and 5 rows of last observations
    seen = set(replay.sample(4096)["obs"].tolist())
    assert seen == set(range(20))


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not():
    replay = PrioritizedReplay(64, {"obs": ((), "float32"), "reward": ((), "float32")}, num_envs=2, discount=0.5)
    replay.add(
        obs=[1.0, 2.0], reward=[3.0, 4.0], terminated=[True, False], truncated=[False, True], next_obs=[10.0, 20.0]
    )
    batch = replay.sample(64)
    of_terminated = batch["obs"] == 1.0
    assert set(batch["discount"][of_terminated]) == {0.0}
    assert set(batch["discount"][~of_terminated]) == {0.5}
    assert set(batch["next_obs"][~of_terminated]) == {20.0}
    np.testing.assert_array_equal(batch["terminated"], of_terminated)


def test_a_step_that_was_refused_is_not_passed_over():
    replay = PrioritizedReplay(100, {"obs": ((), "int64"), "reward": ((), "float32")}, n_step=2, discount=1.0)

    def add(t, reward=1.0):
        replay.add(obs=t, reward=reward, terminated=False, next_obs=t + 1)

    for t in range(9):
        if t == 4:
            with pytest.raises(ValueError, match="does not fit float32"):
                add(t, 1e300)
            with pytest.raises(ValueError, match="was not given"):
                replay.add(obs=t)
        else:
            add(t)
    batch = replay.sample(500)
    assert set(batch["obs"].tolist()) == {0, 1, 5, 6}
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 2)


class Gone:
    """An array whose numbers cannot be had."""

    def __array__(self, *args, **kwargs):
        raise OSError("the frame's file is gone")


def test_a_step_that_could_not_be_read_is_not_passed_over():
    replay = PrioritizedReplay(100, {"obs": ((2,), "float32"), "reward": ((), "float32")})

    def add(obs):
        replay.add(obs=obs, reward=1.0, terminated=False, next_obs=np.zeros(2, np.float32))

    add(np.zeros((1, 2), np.float32))
    with pytest.raises(OSError, match="is gone"):
        add(Gone())
    add(np.ones((1, 2), np.float32))
    assert len(replay) == 0
    add(np.ones((1, 2), np.float32))
    assert len(replay) == 1


def test_arrays_out_of_the_middle_of_a_packet_are_taken():
    """Contiguous, and aligned to nothing."""
    replay = PrioritizedReplay(100, {"obs": ((2,), "float32"), "reward": ((), "float32")})
    packet = b"\1" + np.arange(60, dtype=np.float32).tobytes()
    for t in range(30):
        obs = np.frombuffer(packet, np.float32, 2, offset=1 + 8 * t).reshape(1, 2)
        assert not obs.flags.aligned
        replay.add(obs=obs, reward=[1.0], terminated=[False], next_obs=obs)
    batch = replay.sample(300)
    assert set(batch["obs"][:, 0].tolist()) == set(range(0, 58, 2))
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 2)
    tickets = np.frombuffer(b"\1" + batch.tickets.tobytes(), np.int64, offset=1)
    errors = np.frombuffer(b"\1" + np.ones(300, np.float32).tobytes(), np.float32, offset=1)
    assert replay.update_priorities(tickets, errors) == 0


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n_step", [1, 4])
def test_the_least_capacity_lets_each_environment_be_drawn(num_envs, n_step):
    fields = {"obs": ((), "int64"), "reward": ((), "float32")}
    capacity = 2 * num_envs * (n_step + 1)
    with pytest.raises(ValueError, match=f"give at least {capacity}"):
        PrioritizedReplay(capacity - 1, fields, num_envs=num_envs, n_step=n_step)
    replay = PrioritizedReplay(capacity, fields, num_envs=num_envs, n_step=n_step)
    which = np.arange(num_envs)
    for _ in range(3 * n_step):  # one environment's episode continues, those of the others last a step
        replay.add(obs=which, reward=np.ones(num_envs), terminated=which > 0, next_obs=which)
    assert set(replay.sample(500)["obs"].tolist()) == set(which.tolist())


def test_without_a_next_observation_a_step_needs_only_its_rewards():
    replay = PrioritizedReplay(64, {"x": ((), "int64"), "reward": ((), "float32")}, n_step=3, discount=1.0, next_of=())
    for t in range(5):
        replay.add(x=t, reward=float(t), terminated=False)
    assert len(replay) == 3
    batch = replay.sample(100)
    np.testing.assert_array_equal(batch["reward"], 3 * batch["x"] + 3)
    assert "next_x" not in batch


def test_what_a_step_says_anyway_may_be_among_the_fields():
    fields = {"obs": ((), "int64"), "reward": ((), "float32"), "terminated": ((), "bool")}
    replay = PrioritizedReplay(64, fields)
    replay.add(obs=1, reward=1.0, terminated=True, next_obs=2)
    assert replay.sample(1)["terminated"][0]


def test_after_an_interruption_nothing_follows_what_was_added_before():
    replay = PrioritizedReplay(
        100, {"obs": ((), "int64"), "reward": ((), "float32")}, num_envs=2, n_step=2, discount=1.0
    )
    for begin in (0, 100):  # two resets, neither at the end of an episode
        for t in range(begin, begin + 5):
            replay.add(obs=[t, t + 50], reward=[1.0, 1.0], terminated=[False, False], next_obs=[t + 1, t + 51])
        replay.interrupt()
    batch = replay.sample(1000)
    assert set(batch["obs"].tolist()) == {t + begin for t in range(3) for begin in (0, 50, 100, 150)}
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 2)

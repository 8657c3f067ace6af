"""One replay in several threads and processes, some of which are killed."""

import itertools
import multiprocessing
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay

# Every field says which ticket of which writer it is, so that no mixture goes unnoticed.
FIELDS = {"a": ((40,), "int64"), "b": ((), "int64"), "c": ((3,), "float64")}
STEPS = {"obs": ((40,), "int64"), "env": ((), "int64"), "reward": ((), "float32")}


def write_forever(replay, writer, count=7):
    for i in range(10**9):
        number = (np.arange(count) + i * count) * 64 + writer
        replay.add(a=np.repeat(number[:, None], 40, 1), b=number, c=np.repeat(number[:, None], 3, 1).astype(float))


def check(batch):
    number = batch["b"]
    assert (batch["a"] == number[:, None]).all()
    assert (batch["c"] == number[:, None]).all()


def step_forever(replay, writer):
    """Observation t + 1 follows t in every environment; each episode has ten."""
    envs = np.arange(replay.num_envs) + 1000 * writer
    ends, goes_on = np.ones(replay.num_envs, bool), np.zeros(replay.num_envs, bool)
    for t in range(10**9):
        obs = np.repeat((t + envs * 10**9)[:, None], 40, 1)
        replay.add(
            obs=obs,
            env=envs,
            reward=np.ones(replay.num_envs, np.float32),
            terminated=goes_on,
            truncated=ends if t % 10 == 9 else goes_on,
            next_obs=obs + 1,
        )


def check_steps(batch, n_step):
    assert (batch["obs"] == batch["obs"][:, :1]).all()
    assert (batch["next_obs"] == batch["next_obs"][:, :1]).all()
    t = batch["obs"][:, 0]
    assert (t // 10**9 == batch["env"]).all()
    k = np.minimum(n_step, 10 - t % 10**9 % 10)
    np.testing.assert_array_equal(batch["next_obs"][:, 0], t + k)
    np.testing.assert_array_equal(batch["reward"], k)


def sample_when_there_is_something(replay, size):
    for _ in range(2000):
        try:
            return replay.sample(size)
        except ValueError:
            time.sleep(0.01)
    raise AssertionError("nothing was added within 20 s")


def sample_forever(replay, size=32):
    generator = np.random.default_rng(os.getpid())
    while True:
        batch = sample_when_there_is_something(replay, size)
        check(batch)
        replay.update_priorities(batch, generator.exponential(size=size))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_it(method):
    context = multiprocessing.get_context(method)
    replay = PrioritizedReplay(60, FIELDS)
    children = [context.Process(target=write_forever, args=(replay, i), daemon=True) for i in range(2)]
    children.append(context.Process(target=sample_forever, args=(replay,), daemon=True))
    for child in children:
        child.start()
    writers = set()
    end = time.monotonic() + 40
    while time.monotonic() < end and len(writers) < 2:
        batch = sample_when_there_is_something(replay, 16)
        check(batch)
        writers |= set((batch["b"] % 64).tolist())
    end = time.monotonic() + 1
    while time.monotonic() < end:
        check(replay.sample(16))
    assert writers == {0, 1}
    assert children[2].is_alive()
    for child in children:
        child.kill()
        child.join()
    assert replay._ring.verify()


@pytest.mark.parametrize("n_step", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_processes_that_add_steps_have_streams_of_their_own(n_step):
    context = multiprocessing.get_context("fork")
    replay = PrioritizedReplay(100, STEPS, num_envs=2, n_step=n_step, discount=1.0)
    views = [replay.view(num_envs=3), replay]  # inherited: the second one is this process's, too
    zeros = np.zeros(2, bool)
    for t in range(2):  # what waits here must not be continued there
        replay.add(
            obs=np.full((2, 40), t), env=[0, 0], reward=[1, 1], terminated=zeros, next_obs=np.zeros((2, 40), int)
        )
    children = [context.Process(target=step_forever, args=(view, i + 1), daemon=True) for i, view in enumerate(views)]
    for child in children:
        child.start()
    end = time.monotonic() + 3
    time.sleep(0.2)
    envs = set()
    while time.monotonic() < end:
        batch = sample_when_there_is_something(replay, 32)
        check_steps(batch, n_step)
        envs |= set(batch["env"].tolist())
    for child in children:
        child.kill()
        child.join()
    assert {1000, 1001, 1002, 2000, 2001} <= envs


def test_forked_children_draw_what_the_parent_does_not():
    context = multiprocessing.get_context("fork")
    replay = PrioritizedReplay(10_000, {"b": ((), "int64")})
    replay.add(b=np.arange(10_000))
    replay.sample(4)
    results = context.SimpleQueue()
    children = [context.Process(target=lambda: results.put(replay.sample(4)["b"].tolist())) for _ in range(2)]
    for child in children:
        child.start()
    draws = [replay.sample(4)["b"].tolist(), results.get(), results.get()]
    for child in children:
        child.join()
    assert len(set(map(tuple, draws))) == 3


def test_threads_share_it():
    replay = PrioritizedReplay(50, FIELDS)
    stop = threading.Event()
    failures = []

    def run(work):
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)
            raise

    def writer(i):
        numbers = iter(range(i, 10**12, 64))

        def work():
            number = np.array([next(numbers) for _ in range(5)])
            replay.add(a=np.repeat(number[:, None], 40, 1), b=number, c=np.repeat(number[:, None], 3, 1).astype(float))

        return work

    def sampler():
        batch = replay.sample(24)
        check(batch)
        replay.update_priorities(batch, np.ones(24, np.float32))

    writers = [writer(i) for i in range(3)]
    for work in writers:
        work()
    threads = [threading.Thread(target=run, args=(work,)) for work in (*writers, sampler, sampler)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert replay._ring.verify()
    assert len(replay) == 50


def restore_forever(replay, priorities):
    while True:
        replay._ring.restore(0, priorities, 1.0)


def test_who_waits_for_the_lock_keeps_no_other_thread_waiting():
    replay = PrioritizedReplay(3_000_000, {"b": ((), "uint8")})
    out = np.ones(replay.capacity, np.float32)
    child = multiprocessing.get_context("fork").Process(target=restore_forever, args=(replay, out), daemon=True)
    child.start()
    for work in (lambda: len(replay), lambda: replay.max_priority, lambda: replay._ring.priorities(out)):
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # stopped, and with the lock, which it nearly always has
        thread = threading.Thread(target=work)
        began = time.monotonic()
        thread.start()
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGCONT)
        thread.join()
        assert time.monotonic() - began < 30
    child.kill()
    child.join()


@pytest.mark.parametrize("linked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_process_killed_in_the_middle_of_adding_leaves_it_whole(linked):
    context = multiprocessing.get_context("fork")
    if linked:
        replay = PrioritizedReplay(64, STEPS, num_envs=5, n_step=3, discount=1.0)
    else:
        replay = PrioritizedReplay(64, FIELDS)
    generator = random.Random(1)
    enough = time.monotonic() + 20
    for turn in range(40):
        if turn >= 5 and time.monotonic() > enough:  # a busy machine
            break
        target, args = (step_forever, (replay, turn)) if linked else (write_forever, (replay, turn, 30))
        child = context.Process(target=target, args=args, daemon=True)
        child.start()
        given = replay._ring.given
        end = time.monotonic() + 20
        while replay._ring.given < given + 64 and time.monotonic() < end:  # it is at it
            time.sleep(0.001)
        time.sleep(generator.random() * 0.003)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        # What the dead one was adding is not drawn, and others go on, round the ring and over its rows.
        batch = replay.sample(200)
        if linked:
            check_steps(batch, 3)
        else:
            check(batch)
            replay.add(a=np.ones((60, 40), int), b=np.ones(60, int), c=np.ones((60, 3)))
            check(replay.sample(200))
        assert replay._ring.verify()
        assert 0 < len(replay) <= 64
        priorities = np.empty(64, np.float32)
        replay._ring.priorities(priorities)
        assert len(replay) == np.count_nonzero(priorities)


def test_who_samples_waits_while_everything_is_written_over():
    replay = PrioritizedReplay(4, {"a": ((200_000,), "int64")})
    rows = [np.full((4, 200_000), number) for number in range(8)]
    replay.add(a=rows[0])
    stop = threading.Event()

    def write():
        for number in itertools.cycle(range(8)):
            if stop.is_set():
                break
            replay.add(a=rows[number])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            array = replay.sample(2)["a"]
            assert (array == array[:, :1]).all()
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_process_killed_while_it_loads_leaves_what_can_be_drawn_and_updated(is_empty):
    """Loading is a restore of nothing, and then one of all priorities, of new tickets."""
    replay = PrioritizedReplay(3_000_000, {"b": ((), "uint8")})
    replay.add(b=np.zeros(replay.capacity, np.uint8))
    priorities = np.full(replay.capacity, is_empty, np.float32)
    caught_in_the_middle = 0
    for turn in range(60):
        replay._ring.restore(replay.capacity, np.full(replay.capacity, not is_empty, np.float32), 1.0)
        assert len(replay) == (0 if is_empty else replay.capacity)
        child = multiprocessing.get_context("fork").Process(
            target=replay._ring.restore, args=(replay.capacity, priorities, 1.0)
        )
        given, end = replay._ring.given, time.monotonic() + 20
        child.start()
        # Until it is at it: what is live goes first, and then the tickets move on.
        while is_empty and replay._ring.given == given and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(0.001 * turn)
        child.kill()
        child.join()
        live = len(replay)
        caught_in_the_middle += 0 < live < replay.capacity
        if live:
            batch = replay.sample(1000)
            assert replay.update_priorities(batch, np.ones(1000, np.float32)) == 0
        assert replay._ring.verify()
        if caught_in_the_middle == 3:
            break
    assert caught_in_the_middle

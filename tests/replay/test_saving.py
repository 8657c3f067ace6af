"""Replays in files: copies, and mapped ones."""

import io
import multiprocessing
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay, saving

FIELDS = {"obs": ((3,), "float32"), "action": ((), "int64"), "reward": ((), "float32")}


def make(**changes):
    return PrioritizedReplay(**{"capacity": 50, "fields": FIELDS, "num_envs": 2, "n_step": 2, "alpha": 1.0, **changes})


def add(replay, first, count):
    for t in range(first, first + count):
        replay.add(
            obs=np.full((2, 3), t, np.float32),
            action=[t, t + 1000],
            reward=[1.0, 2.0],
            terminated=[t % 7 == 6, False],
            truncated=[False, t % 5 == 4],
            next_obs=np.full((2, 3), t + 0.5, np.float32),
        )


def content(replay):
    """All transitions that can be drawn, by row."""
    batch = replay.sample(20_000)
    names = [name for name in batch if name != "action"]
    return {
        ticket % replay.capacity: (batch["action"][i], *(batch[name][i].tobytes() for name in names))
        for i, ticket in enumerate(batch.tickets.tolist())
    }


def priorities_of(replay):
    out = np.empty(replay.capacity, np.float32)
    replay._ring.priorities(out)
    return out


@pytest.mark.parametrize("count", [4, 60])
def test_a_copy_brings_everything_back(tmp_path, count):
    replay = make()
    add(replay, 0, count)
    replay.update_priorities(replay.sample(10), np.linspace(0.1, 3, 10))
    replay.save(tmp_path / "copy")
    other = make(seed=5, beta=0.7)
    add(other, 500, 13)
    other.load(tmp_path / "copy")
    assert content(other) == content(replay)
    np.testing.assert_array_equal(priorities_of(other), priorities_of(replay))
    assert (len(other), other.max_priority) == (len(replay), replay.max_priority)
    # Later steps do not follow those that were saved.
    add(other, 1000, 20)
    for action, *_ in content(other).values():
        assert action >= 0
    assert other._ring.verify()


@pytest.mark.parametrize("count", [4, 60])
def test_streams_of_views_end_where_a_copy_is_loaded(tmp_path, count):
    replay = make()
    view, copy = replay.view(), tmp_path / "copy"
    add(replay, 0, count)
    replay.save(copy)
    before, priorities = content(replay), priorities_of(replay)
    for behind in range(5):  # steps that wait, in rows that the copy has put to another use, or to none
        add(view, 500, 20 + behind)
        replay.load(copy)
        add(view, 1001, 2)  # neither is followed by two
        assert content(replay).items() <= before.items()
        assert len(replay) == np.count_nonzero(priorities_of(replay))
        replay.load(copy)
        np.testing.assert_array_equal(priorities_of(replay), priorities)


@pytest.mark.parametrize("count", [4, 60])
def test_a_ticket_of_before_a_load_stands_for_nothing_after_it(tmp_path, count):
    replay = make()
    add(replay, 0, count)
    replay.save(tmp_path / "copy")
    add(replay, 500, 37)
    old = replay.sample(100).tickets.copy()
    replay.load(tmp_path / "copy")
    loaded = replay.sample(100).tickets.copy()
    assert loaded.min() > old.max()
    for _ in range(3):
        assert replay.update_priorities(old, np.full(100, 9.0)) == 100
        add(replay, 1000, 13)
    assert replay.max_priority == 1.0
    replay.load(tmp_path / "copy")
    assert replay.update_priorities(loaded, np.ones(100)) == 100


def test_a_copy_made_while_others_add_holds_nothing_torn(tmp_path):
    replay = PrioritizedReplay(20_000, {"a": ((50,), "int64"), "b": ((), "int64")})
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_add_forever, args=(replay,), daemon=True)
    child.start()
    while replay._ring.given < 20_000:
        pass
    for _ in range(5):
        replay.save(tmp_path / "copy")
        other = PrioritizedReplay(20_000, {"a": ((50,), "int64"), "b": ((), "int64")})
        other.load(tmp_path / "copy")
        batch = other.sample(20_000)
        assert (batch["a"] == batch["b"][:, None]).all()
        assert 0 < len(other) <= 20_000
    child.kill()
    child.join()


def test_a_copy_of_steps_made_while_others_add_has_what_each_needs(tmp_path):
    fields = {"obs": ((30,), "int64"), "reward": ((), "float32")}
    replay = PrioritizedReplay(40_000, fields, num_envs=64, n_step=3, discount=1.0)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_step_forever, args=(replay,), daemon=True)
    child.start()
    for least in (1000, 20_000, 40_000, 50_000):  # half empty, full
        while replay._ring.given < least:
            time.sleep(0.001)
        replay.save(tmp_path / "copy")
        other = PrioritizedReplay(40_000, fields, num_envs=64, n_step=3, discount=1.0)
        other.load(tmp_path / "copy")
        priorities = priorities_of(other)
        assert len(other) == np.count_nonzero(priorities) > 0
        batch = other.sample(40_000)
        t = batch["obs"][:, 0]
        k = np.minimum(3, 10 - t % 10)
        assert (batch["obs"] == t[:, None]).all()
        assert (batch["next_obs"] == (t + k)[:, None]).all()
        np.testing.assert_array_equal(batch["reward"], k)
    child.kill()
    child.join()


def _step_forever(replay):
    no, yes = np.zeros(64, bool), np.ones(64, bool)
    for t in range(10**9):
        obs = np.full((64, 30), t)
        last = yes if t % 10 == 9 else no
        replay.add(obs=obs, next_obs=obs + 1, reward=np.ones(64, np.float32), terminated=no, truncated=last)
        time.sleep(0.002)


def _add_forever(replay):
    for i in range(10**9):
        number = np.arange(100) + i * 100
        replay.add(a=np.repeat(number[:, None], 50, 1), b=number)
        time.sleep(0.002)  # else there is nothing left by then of what was there at first


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"capacity": 51}, "capacity"),
        ({"n_step": 1}, "n_step"),
        ({"fields": {**FIELDS, "action": ((), "int32")}}, "fields"),
        ({"fields": {**{("act" if k == "action" else k): v for k, v in FIELDS.items()}}}, "fields"),
        ({"discount": 0.9}, "discount"),
    ],
)
def test_a_copy_of_another_replay_is_refused(tmp_path, changes, difference):
    replay = make()
    add(replay, 0, 5)
    replay.save(tmp_path / "copy")
    other = make(**changes)
    with pytest.raises(ValueError, match=f"is of a replay with other {difference}; make one like it"):
        other.load(tmp_path / "copy")


def test_what_is_no_copy_is_refused(tmp_path):
    (tmp_path / "text").write_text("no zip")
    with pytest.raises(ValueError, match="is not a saved replay"):
        make().load(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "empty", "w"):
        pass
    with pytest.raises(ValueError, match="is not a saved replay"):
        make().load(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        make().load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        make().save(tmp_path / "nowhere" / "copy")


def test_a_damaged_copy_is_refused_and_says_what_is_left(tmp_path):
    replay, random = make(capacity=500), np.random.default_rng(0)
    add(replay, 0, 230)
    replay.save(tmp_path / "copy")
    whole, before = (tmp_path / "copy").read_bytes(), priorities_of(replay)
    other = make(capacity=500)
    kept = emptied = 0
    for i in range(300):
        damaged = bytearray(whole[: random.integers(1, len(whole))] if i % 3 == 0 else whole)
        for at in random.integers(len(damaged), size=10 if i % 3 == 1 else 1):
            damaged[at] ^= random.integers(1, 256)
        (tmp_path / "damaged").write_bytes(damaged)
        other.load(tmp_path / "copy")
        message = ""
        try:
            other.load(tmp_path / "damaged")
        except ValueError as error:
            message = str(error)
        assert not message or "damaged is not a saved replay" in message or "damaged is of a replay with" in message
        is_empty = message.endswith("; the replay is empty now")
        np.testing.assert_array_equal(priorities_of(other), 0 * before if is_empty else before)
        kept, emptied = kept + (bool(message) and not is_empty), emptied + is_empty
    assert kept > 100
    assert emptied > 20


def test_rows_of_a_changed_copy_that_lead_nowhere_have_no_next(tmp_path):
    replay = make()
    add(replay, 0, 60)
    replay.save(tmp_path / "copy")
    with zipfile.ZipFile(tmp_path / "copy") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    records = np.load(io.BytesIO(members["records.npy"]))
    links = records.view(np.int64)[:, 0]
    assert links.max() < replay.capacity
    links[:] = np.resize([2**40, -(2**40), replay.capacity], len(links))
    changed = io.BytesIO()
    np.save(changed, records)
    members["records.npy"] = changed.getvalue()
    with zipfile.ZipFile(tmp_path / "changed", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    other = make()
    other.load(tmp_path / "changed")
    assert set(other.sample(1000)["reward"].tolist()) == {1.0, 2.0}


def test_a_copy_goes_into_a_replay_that_draws_otherwise(tmp_path):
    replay = make()
    add(replay, 0, 30)
    replay.update_priorities(replay.sample(10), np.linspace(0.1, 3, 10))
    replay.save(tmp_path / "copy")
    for changes in ({"weights": "global"}, {"fanout": 4}, {"alpha": 0.5, "beta": 1.0, "stratified": True}):
        other = make(**changes)
        other.load(tmp_path / "copy")
        np.testing.assert_array_equal(priorities_of(other), priorities_of(replay))
        assert content(other) == content(replay)
        assert other._ring.verify()


def test_a_file_is_opened_again(tmp_path):
    path = tmp_path / "replay"
    replay = make(path=path)
    add(replay, 0, 60)
    before, priorities = content(replay), priorities_of(replay)
    replay.flush()
    del replay
    again = PrioritizedReplay.open(path)
    assert content(again) == before
    np.testing.assert_array_equal(priorities_of(again), priorities)
    assert (again.capacity, again.num_envs, [field.name for field in again.fields]) == (50, 2, list(FIELDS))
    add(again, 100, 5)
    with pytest.raises(FileExistsError, match=r"open it with PrioritizedReplay\.open, delete it, or name another"):
        make(path=path)


def test_a_file_that_was_open_when_the_machine_went_down_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "replay"
    replay = make(path=path)
    add(replay, 0, 10)
    assert len(PrioritizedReplay.open(path)) == len(replay)  # the same boot: killed processes leave it whole
    monkeypatch.setattr(saving, "boot_id", lambda: "another")
    with pytest.raises(ValueError, match="was changed and not flushed before the machine went down"):
        PrioritizedReplay.open(path)
    replay.flush()
    assert len(PrioritizedReplay.open(path)) == len(replay)


@pytest.mark.parametrize("change", ["add", "update", "load"])
def test_a_flush_is_worth_nothing_after_the_next_change(tmp_path, monkeypatch, change):
    path = tmp_path / "replay"
    replay = make(path=path)
    add(replay, 0, 10)
    replay.save(tmp_path / "copy")
    batch, other = replay.sample(8), PrioritizedReplay.open(path)
    for boot in ("first", "second"):
        replay.flush()
        monkeypatch.setattr(saving, "boot_id", lambda boot=boot: boot)
        assert len(PrioritizedReplay.open(path)) == len(replay)
        monkeypatch.setattr(saving, "boot_id", lambda boot=boot: f"after the {boot}")
        assert len(PrioritizedReplay.open(path)) == len(replay)  # drawing changes nothing
        match change:
            case "add":
                add(other, 10, 1)
            case "update":
                other.update_priorities(batch, np.ones(8))
            case "load":
                other.load(tmp_path / "copy")
        assert PrioritizedReplay.open(path)  # the same boot
        monkeypatch.setattr(saving, "boot_id", lambda boot=boot: f"long after the {boot}")
        with pytest.raises(ValueError, match="was changed and not flushed before the machine went down"):
            PrioritizedReplay.open(path)


def test_a_copy_does_not_replace_a_file_that_is_kept_in(tmp_path):
    replay = make(path=tmp_path / "own")
    add(replay, 0, 20)
    with pytest.raises(ValueError, match=r"own is a file that a replay keeps everything in, .*; name another"):
        replay.save(tmp_path / "own")
    add(replay, 20, 20)
    assert content(PrioritizedReplay.open(tmp_path / "own")) == content(replay)


def test_a_copy_leaves_nothing_beside_it_and_all_that_was_there(tmp_path):
    replay = make()
    add(replay, 0, 20)
    replay.save(tmp_path / "copy.new")
    (tmp_path / ".copy.part").write_text("of a writer that was killed" * 10_000)
    replay.save(tmp_path / "copy")
    with pytest.raises(IsADirectoryError):
        replay.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "copy.new"}
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "copy.new").read_bytes()


def test_several_threads_save_to_one_path_and_each_copy_is_whole(tmp_path):
    replays = [make(), make()]
    for i, replay in enumerate(replays):
        add(replay, 100 * i, 40)
    whole = [content(replay) for replay in replays]

    def save(replay):
        for _ in range(25):
            replay.save(tmp_path / "copy")

    replays[0].save(tmp_path / "copy")
    with ThreadPoolExecutor(4) as pool:
        savers = [pool.submit(save, replay) for replay in (*replays, *replays)]
        while not all(saver.done() for saver in savers):
            other = make()
            other.load(tmp_path / "copy")
            assert content(other) in whole
        for saver in savers:
            saver.result()
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_of_several_who_make_one_file_one_succeeds(tmp_path):
    for i in range(10):
        barrier = threading.Barrier(4)

        def create(path=tmp_path / f"{i}", barrier=barrier):
            barrier.wait()
            try:
                return make(path=path)
            except FileExistsError:
                return None

        with ThreadPoolExecutor(4) as pool:
            made = [future.result() for future in [pool.submit(create) for _ in range(4)]]
        [replay] = [replay for replay in made if replay is not None]
        add(replay, 0, 10)
        assert content(PrioritizedReplay.open(tmp_path / f"{i}")) == content(replay)


def test_what_is_no_replay_is_not_opened(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="does not hold a replay; to read a copy made by save, call load"):
        PrioritizedReplay.open(tmp_path / "text")
    (tmp_path / "odd").write_bytes(saving._MAGIC + b'{"capacity": 3}')
    with pytest.raises(ValueError, match=r"odd is damaged \(the settings of a replay cannot be read"):
        PrioritizedReplay.open(tmp_path / "odd")
    (tmp_path / "odder").write_bytes(saving._MAGIC + b"{")
    with pytest.raises(ValueError, match=r"odder is damaged \(.*\); load a copy made by save, or start a new one"):
        PrioritizedReplay.open(tmp_path / "odder")
    replay = make(path=tmp_path / "short")
    del replay
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere for the file replay; make it"):
        make(path=tmp_path / "nowhere" / "replay")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere for the file copy; make it"):
        make().save(tmp_path / "nowhere" / "copy")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        make().save(tmp_path)
    with open(tmp_path / "short", "r+b") as file:
        file.truncate(70_000)
    with pytest.raises(OSError, match="70000 bytes"):
        PrioritizedReplay.open(tmp_path / "short")


def test_too_many_fields_do_not_fit_and_leave_no_file(tmp_path):
    fields = {f"field{i:0500d}": ((), "int8") for i in range(200)}
    for path in (None, tmp_path / "replay"):
        with pytest.raises(ValueError, match="have fewer fields"):
            PrioritizedReplay(10, fields, path=path)
    assert not (tmp_path / "replay").exists()


def test_a_copy_of_cs_own_types_comes_back(tmp_path):
    replay = PrioritizedReplay(10, {"x": ((), np.longlong), "y": ((2,), np.ulonglong)}, next_of=())
    replay.add(x=np.arange(3, dtype=np.longlong), y=np.ones((3, 2), np.ulonglong))
    replay.save(tmp_path / "copy")
    replay.load(tmp_path / "copy")
    assert set(replay.sample(50)["x"].tolist()) == {0, 1, 2}


def test_a_uniform_replay_makes_loaded_priorities_equal(tmp_path):
    fields = {"x": ((), "int64")}
    replay = PrioritizedReplay(10, fields, alpha=1.0)
    replay.add(x=np.arange(10))
    batch = replay.sample(1000)
    replay.update_priorities(batch, np.where(batch["x"] == 0, 100.0, 1.0).astype(np.float32))
    replay.save(tmp_path / "copy")
    uniform = PrioritizedReplay(10, fields, uniform=True)
    uniform.load(tmp_path / "copy")
    assert np.bincount(uniform.sample(20_000)["x"]).max() < 2_400
    uniform.add(x=[20])
    assert (uniform.sample(20_000)["x"] == 20).mean() < 0.12

"""A replay in a file: when a run resumes with it, and when it is recreated."""

import json

import numpy as np
import pytest

from rollmill.regimes.replay_memory import _open_of_all
from rollmill.runtime.arena import Arena, ArenaLayout, NotEnoughDisk
from rollmill.runtime.ranks import Ranks, folder_of_rank
from rollmill.runtime.signed_files import UntrustedError, signed
from rollmill.storage import replay_file
from rollmill.storage.replay_file import (
    ReplayFolderError,
    adopt_replay,
    close_replay,
    discard_new_replay,
    open_replay,
    remove_replay,
)

RULES = {"n_step": 3, "stacks": {"obs": [4, "zero"]}}


def layout(size=1000):
    return ArenaLayout().add("values", (size,), "float32").add("count", (1,), "int64", poisoned=False)


def begin(run_dir):
    opened = open_replay(run_dir, layout(), RULES, resume=False)
    opened.arena["values"][:] = np.arange(1000)
    opened.arena["count"][0] = 7
    adopt_replay(run_dir)
    return opened


def record_of(run_dir):
    return run_dir / "replay" / "record.json"


def test_what_a_killed_run_left_is_there_again(tmp_path):
    begin(tmp_path).arena.close()
    again = open_replay(tmp_path, layout(), RULES, resume=True)
    assert again.is_kept
    assert again.note == ""
    np.testing.assert_array_equal(again.arena["values"], np.arange(1000))
    assert again.arena["count"][0] == 7


def test_a_run_that_is_not_resumed_begins_with_nothing(tmp_path):
    begin(tmp_path)
    again = open_replay(tmp_path, layout(), RULES, resume=False)
    assert not again.is_kept
    assert not again.arena["values"].any()
    adopt_replay(tmp_path)
    assert not open_replay(tmp_path, layout(), RULES, resume=True).arena["values"].any()


def test_another_boot_is_trusted_after_a_close_only(tmp_path, monkeypatch):
    begin(tmp_path)
    monkeypatch.setattr(replay_file, "boot_id", lambda: "another")
    close_replay(tmp_path)
    assert json.loads(record_of(tmp_path).read_text())["closed"] is False, "a run may fail before it has its own replay"
    lost = open_replay(tmp_path, layout(), RULES, resume=True)
    assert not lost.is_kept
    assert "the machine crashed" in lost.note
    lost.arena["values"][:] = 3.0
    adopt_replay(tmp_path)
    close_replay(tmp_path)
    monkeypatch.setattr(replay_file, "boot_id", lambda: "a third")
    again = open_replay(tmp_path, layout(), RULES, resume=True)
    assert again.is_kept
    assert (again.arena["values"] == 3.0).all()
    assert json.loads(record_of(tmp_path).read_text())["closed"] is False, "it is open again"


@pytest.mark.parametrize(
    ("harm", "note"),
    [
        (remove_replay, "there is none"),
        (lambda run_dir: record_of(run_dir).write_text("{"), "cannot be read"),
        (lambda run_dir: record_of(run_dir).write_text("{}"), "is not the record of a replay"),
        (lambda run_dir: (run_dir / "replay" / "slots").unlink(), "No such file"),
        (lambda run_dir: (run_dir / "replay" / "slots").write_bytes(b"x"), "has 1 bytes"),
    ],
)
def test_an_incomplete_replay_is_recreated_with_a_note(harm, note, tmp_path):
    begin(tmp_path)
    harm(tmp_path)
    opened = open_replay(tmp_path, layout(), RULES, resume=True)
    assert not opened.is_kept
    assert note in opened.note
    adopt_replay(tmp_path)
    assert open_replay(tmp_path, layout(), RULES, resume=True).is_kept


def test_a_replay_of_another_shape_is_recreated(tmp_path):
    begin(tmp_path)
    opened = open_replay(tmp_path, layout(1001), RULES, resume=True)
    assert not opened.is_kept
    assert "another shape" in opened.note


@pytest.mark.parametrize(
    ("rules", "note"),
    [
        (RULES | {"n_step": 1}, "written with n_step=3 (now 1)"),
        (RULES | {"window": 8}, "written with window=None (now 8)"),
        ({"stacks": {"obs": [4, "repeat"]}}, "stacks={'obs': [4, 'zero']} (now {'obs': [4, 'repeat']})"),
    ],
)
def test_a_replay_written_by_other_rules_is_recreated(rules, note, tmp_path):
    begin(tmp_path)
    opened = open_replay(tmp_path, layout(), rules, resume=True)
    assert not opened.is_kept
    assert note in opened.note


def test_a_new_replay_takes_an_old_ones_place_when_it_is_adopted_and_not_before(tmp_path):
    begin(tmp_path)
    for _ in range(2):
        new = open_replay(tmp_path, layout(1001), RULES, resume=True)
        new.arena["values"][:] = 5.0
        discard_new_replay(tmp_path)
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == ["record.json", "slots"]
    again = open_replay(tmp_path, layout(), RULES, resume=True)
    assert again.is_kept
    np.testing.assert_array_equal(again.arena["values"], np.arange(1000))
    new = open_replay(tmp_path, layout(1001), RULES, resume=True)
    adopt_replay(tmp_path)
    new.arena["values"][:] = 6.0
    adopt_replay(tmp_path)  # There is none.
    again = open_replay(tmp_path, layout(1001), RULES, resume=True)
    assert again.is_kept
    assert (again.arena["values"] == 6.0).all()


def test_a_disk_without_room_for_a_new_replay_keeps_the_old_one(tmp_path):
    begin(tmp_path)
    with pytest.raises(NotEnoughDisk, match="make room"):
        open_replay(tmp_path, ArenaLayout().add("values", (1 << 50,), "uint8"), RULES, resume=True)
    assert open_replay(tmp_path, layout(), RULES, resume=True).is_kept


def test_closing_what_was_never_adopted_says_nothing(tmp_path):
    open_replay(tmp_path, layout(), RULES, resume=False)
    close_replay(tmp_path)
    assert not record_of(tmp_path).exists()


def test_a_full_disk_raises_before_anything_is_written(tmp_path):
    huge = ArenaLayout().add("values", (1 << 50,), "uint8")
    with pytest.raises(NotEnoughDisk, match="make room"):
        Arena.create_file(huge, tmp_path / "replay" / "slots")
    assert not (tmp_path / "replay" / "slots").exists()


def test_a_disk_that_is_full_at_the_record_raises(tmp_path):
    begin(tmp_path)
    record_of(tmp_path).with_suffix(".new").symlink_to("/dev/full")
    with pytest.raises(NotEnoughDisk, match=r"record.json cannot be written \(No space left on device\): make room"):
        close_replay(tmp_path)
    assert open_replay(tmp_path, layout(), RULES, resume=True).is_kept


def test_a_file_that_was_copied_with_holes_takes_its_room_before_it_is_written(tmp_path):
    begin(tmp_path).arena.close()
    slots = tmp_path / "replay" / "slots"
    size, content = slots.stat().st_size, slots.read_bytes()
    slots.unlink()
    with slots.open("wb") as file:
        file.write(content[:4000])
        file.truncate(size)
    assert open_replay(tmp_path, layout(), RULES, resume=True).is_kept
    assert slots.stat().st_blocks * 512 >= size


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: {key: value for key, value in record.items() if key != "signature"}, "has no signature"),
        (lambda record: record | {"signature": {"key": "theirs", "hmac": "00"}}, "was signed with another key"),
        (lambda record: record | {"boot": "another", "closed": True}, "was changed after"),
        (lambda record: signed(record), "was changed after"),  # As settings.
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_refuses_a_replay_that_another_user_left(change, why, rank, tmp_path):
    folder = folder_of_rank(tmp_path, rank)
    begin(folder).arena.close()
    record = record_of(folder)
    record.write_text(json.dumps(change(json.loads(record.read_text()))))
    ranks = Ranks(rank=rank, world_size=2, local_rank=rank, local_world_size=2)

    def open_it(*, resume, trust=False):
        return open_replay(folder, layout(), RULES, resume=resume, trust=trust)

    with pytest.raises(UntrustedError, match=rf"{record} is not trusted, and native code .* without checks: it {why}"):
        _open_of_all(open_it, 100, ranks, 1.0, range(1))
    assert not open_it(resume=False).is_kept, "a new run does not use it"
    assert open_it(resume=True, trust=True).is_kept
    assert open_it(resume=True).is_kept, "it is this user's from then on"


def test_a_run_signs_no_record_but_that_of_its_own_replay(tmp_path):
    begin(tmp_path).arena.close()
    record = record_of(tmp_path)
    theirs = json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "signature"})
    record.write_text(theirs)
    assert "another shape" in open_replay(tmp_path, layout(1001), RULES, resume=True).note
    close_replay(tmp_path)  # Before the new one was adopted.
    assert record.read_text() == theirs


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("obstacle", ["replay", "replay/new-slots/folder"])
def test_where_nothing_can_be_kept_is_said_with_what_to_do(obstacle, resume, tmp_path):
    path = tmp_path / obstacle
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    with pytest.raises(ReplayFolderError, match=r"replay.*replay\.storage=memory"):
        open_replay(tmp_path, layout(), RULES, resume=resume)

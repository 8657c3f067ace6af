"""A replay in a file: when it is gone on with, and when it is begun anew."""

import json

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout, NotEnoughDisk
from rollmill.storage import replay_file
from rollmill.storage.replay_file import close_replay, open_replay


def layout(size=1000):
    return ArenaLayout().add("values", (size,), "float32").add("count", (1,), "int64", poisoned=False)


def begin(run_dir):
    opened = open_replay(run_dir, layout(), resume=False)
    opened.arena["values"][:] = np.arange(1000)
    opened.arena["count"][0] = 7
    return opened


def record_of(run_dir):
    return run_dir / "replay" / "record.json"


def test_what_a_killed_run_left_is_there_again(tmp_path):
    begin(tmp_path).arena.close()
    again = open_replay(tmp_path, layout(), resume=True)
    assert again.is_kept
    assert again.note == ""
    np.testing.assert_array_equal(again.arena["values"], np.arange(1000))
    assert again.arena["count"][0] == 7


def test_a_run_that_is_not_resumed_begins_with_nothing(tmp_path):
    begin(tmp_path)
    again = open_replay(tmp_path, layout(), resume=False)
    assert not again.is_kept
    assert not again.arena["values"].any()


def test_another_boot_is_trusted_after_a_close_only(tmp_path, monkeypatch):
    begin(tmp_path)
    monkeypatch.setattr(replay_file, "boot_id", lambda: "another")
    lost = open_replay(tmp_path, layout(), resume=True)
    assert not lost.is_kept
    assert "the machine went down" in lost.note
    lost.arena["values"][:] = 3.0
    close_replay(tmp_path)
    monkeypatch.setattr(replay_file, "boot_id", lambda: "a third")
    again = open_replay(tmp_path, layout(), resume=True)
    assert again.is_kept
    assert (again.arena["values"] == 3.0).all()
    assert json.loads(record_of(tmp_path).read_text())["closed"] is False, "it is open again"


@pytest.mark.parametrize(
    ("harm", "note"),
    [
        (lambda run_dir: record_of(run_dir).unlink(), "cannot be read"),
        (lambda run_dir: record_of(run_dir).write_text("{"), "cannot be read"),
        (lambda run_dir: record_of(run_dir).write_text("{}"), "cannot be read"),
        (lambda run_dir: (run_dir / "replay" / "slots").unlink(), "No such file"),
        (lambda run_dir: (run_dir / "replay" / "slots").write_bytes(b"x"), "has 1 bytes"),
    ],
)
def test_what_is_not_whole_is_begun_anew_and_said(harm, note, tmp_path):
    begin(tmp_path)
    harm(tmp_path)
    opened = open_replay(tmp_path, layout(), resume=True)
    assert not opened.is_kept
    assert note in opened.note
    assert open_replay(tmp_path, layout(), resume=True).is_kept


def test_another_shape_is_begun_anew(tmp_path):
    begin(tmp_path)
    opened = open_replay(tmp_path, layout(1001), resume=True)
    assert not opened.is_kept
    assert "of another shape" in opened.note


def test_a_full_disk_is_told_before_anything_is_written(tmp_path):
    huge = ArenaLayout().add("values", (1 << 50,), "uint8")
    with pytest.raises(NotEnoughDisk, match="make room"):
        Arena.create_file(huge, tmp_path / "replay" / "slots")
    assert not (tmp_path / "replay" / "slots").exists()

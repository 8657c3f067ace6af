"""Files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollmill.storage.whole_files import write_whole


@pytest.mark.parametrize("content", [b"", b"new", bytearray(b"new\0" * 100_000)])
def test_a_file_is_replaced_and_nothing_is_left_aside(tmp_path: Path, content: bytes) -> None:
    path, aside = tmp_path / "file", tmp_path / "file.new"
    for before in (None, b"a longer content than before"):
        if before is not None:
            path.write_bytes(before)
        write_whole(path, content, aside)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["file"]


def test_what_an_interrupted_writer_left_aside_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file.new").write_bytes(b"half of something much longer")
    write_whole(tmp_path / "file", b"new", tmp_path / "file.new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    aside = tmp_path / "aside"
    aside.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        write_whole(path, b"new", aside)
    assert error.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_replace_the_old_one_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(path, b"new", tmp_path / "aside")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "file", b"new", tmp_path / "none" / "aside")
    assert os.listdir(tmp_path) == []

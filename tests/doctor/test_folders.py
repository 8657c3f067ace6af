"""Folders that can be written to, and some that cannot, for every user."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollmill.doctor import folders


def test_the_current_folder_can_be_written_to_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folders.check_working_folder().found.startswith(f"{tmp_path} can be written to, ")
    refused = folders.check_working_folder(Path("/proc"))
    assert refused.state == "warning"
    assert refused.found.startswith("/proc cannot be written to")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    full = folders.check_working_folder()
    assert (full.state, full.found) == ("warning", f"{tmp_path} can be written to, 1.0 MiB free")


def test_the_cache_folder_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert folders.check_cache().found == f"{tmp_path / 'new' / 'rollmill'} can be written to"
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert folders.check_cache().state == "warning"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    assert folders.check_cache().found == "none, because this user has no home folder"


def test_the_key_is_kept_in_the_configuration_folder_or_a_note_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert folders.check_key().found == str(tmp_path / "rollmill" / "signing_key")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    elsewhere = folders.check_key()
    assert elsewhere.state == "warning"
    assert "is kept in" in elsewhere.found or "can be kept" in elsewhere.found

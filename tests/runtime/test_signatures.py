"""The key that signs a user's files, and what it verifies."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from rollmill.runtime import signatures
from rollmill.runtime.signatures import Verdict, sign, signing_key, verify


def test_foreign_signature_and_change_have_different_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = sign("test", [b"a", b"b"])
    assert verify("test", [b"a", b"b"], signature) is Verdict.VALID
    assert verify("test", [b"ab"], signature) is Verdict.CHANGED
    assert verify("other", [b"a", b"b"], signature) is Verdict.CHANGED
    for none in (None, "x", {}, {"key": 1, "hmac": 2}, []):
        assert verify("test", [b"a", b"b"], none) is Verdict.UNSIGNED
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    assert verify("test", [b"a", b"b"], signature) is Verdict.FOREIGN


def test_only_the_user_can_read_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(signing_key().secret)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1  # Concurrent creation yields one key.
    assert len(keys) == 8
    key = signing_key()
    assert key.place == tmp_path / "configuration" / "rollmill" / "signing_key"
    assert stat.S_IMODE(key.place.stat().st_mode) == 0o600
    assert os.listdir(key.place.parent) == ["signing_key"]
    assert not key.note


@pytest.mark.parametrize("damage", ["no folder", "readable", "damaged", "no home"])
def test_key_falls_back_to_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(signatures.tempfile, "gettempdir", lambda: str(temporary))
    configuration = tmp_path / "configuration"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(configuration))
    if damage == "no folder":
        configuration.touch()
    elif damage == "no home":
        monkeypatch.setenv("XDG_CONFIG_HOME", "")
        monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    else:
        place = signing_key().place
        assert place is not None
        place.chmod(0o644) if damage == "readable" else place.write_text("xyz")
    key = signing_key()
    assert key.place == temporary / f"rollmill-{os.geteuid()}" / "signing_key"
    assert "XDG_CONFIG_HOME" in key.note
    assert verify("test", [b"a"], sign("test", [b"a"])) is Verdict.VALID
    key.place.parent.chmod(0o755)  # The folder may belong to someone else and is not used.
    key = signing_key()
    assert key.place is None
    assert verify("test", [b"a"], sign("test", [b"a"])) is Verdict.VALID


@pytest.fixture
def key_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Places of the key: the configuration folder and the temporary folder. Neither exists yet."""
    temporary, configuration = tmp_path / "temporary", tmp_path / "configuration"
    temporary.mkdir()
    monkeypatch.setattr(signatures.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(configuration))
    folders = configuration / "rollmill", temporary / f"rollmill-{os.geteuid()}"
    return folders[0] / "signing_key", folders[1] / "signing_key"


def test_every_readable_key_verifies(key_places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs may have been signed before or after the configuration folder became usable."""
    usual, temporary = key_places
    configuration = usual.parent.parent
    configuration.touch()  # Not a folder.
    assert signing_key().place == temporary
    of_temporary = sign("test", [b"a"])
    configuration.unlink()
    assert verify("test", iter([b"a"]), of_temporary) is Verdict.VALID
    assert not configuration.exists(), "verification must not create a key"
    assert signing_key().place == usual
    of_usual = sign("test", [b"a"])
    for signature in (of_temporary, of_usual):
        assert verify("test", iter([b"a"]), signature) is Verdict.VALID
        assert verify("test", iter([b"b"]), signature) is Verdict.CHANGED
    usual.chmod(0o644)
    assert verify("test", [b"a"], of_temporary) is Verdict.VALID
    assert verify("test", [b"a"], of_usual) is Verdict.FOREIGN
    usual.chmod(0o600)
    shutil.rmtree(temporary.parent)
    assert verify("test", [b"a"], of_temporary) is Verdict.FOREIGN
    assert not temporary.parent.exists(), "verification must not create a key"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("mode", r"can be read by others \(mode 644\): run chmod 600"),
        ("owner", r"belongs to the user 4242, but this process runs as \d+: run as that user, or give the file to"),
        ("letters", r"does not hold a key.*restore it from a backup, or remove it.*earlier runs need --trust"),
        ("short", r"does not hold a key.*restore it from a backup, or remove it.*earlier runs need --trust"),
        ("binary", r"does not hold a key.*restore it from a backup, or remove it.*earlier runs need --trust"),
        ("folder", r"is not a file: remove it"),
    ],
)
def test_the_note_says_why_the_own_key_is_unusable(
    key_places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, damage: str, says: str
) -> None:
    place, temporary = key_places
    signature = sign("test", [b"a"])
    if damage == "mode":
        place.chmod(0o644)
    elif damage == "owner":
        stat_of = os.fstat

        def fstat(number: int) -> Any:
            found = stat_of(number)
            is_usual = os.path.samestat(found, place.stat())
            return os.stat_result((*found[:4], 4242, *found[5:10])) if is_usual else found

        monkeypatch.setattr(signatures.os, "fstat", fstat)
    elif damage == "folder":
        place.unlink()
        place.mkdir()
    else:
        place.write_bytes({"letters": b"not a key", "short": b"abcd", "binary": b"\xff" * 64}[damage])
    assert verify("test", [b"a"], signature) is Verdict.FOREIGN
    key = signing_key()
    assert key.place == temporary
    assert re.search(rf"is kept in {temporary}, because {place} {says}", key.note)


def test_the_name_of_a_key_does_not_reveal_it() -> None:
    key = signing_key()
    name = hashlib.sha256(b"rollmill key\0" + key.secret).hexdigest()[:16]
    assert key.name == sign("test", [])["key"] == name
    assert key.secret.hex() not in str(sign("test", [b"a"]))


def test_a_signature_is_an_hmac_over_each_part_and_its_length() -> None:
    key = signing_key()
    parts = [b"rollmill signature 1", b"test", b"first", b""]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert sign("test", [b"first", b""])["hmac"] == hmac.digest(key.secret, message, "sha256").hex()

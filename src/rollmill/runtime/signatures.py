"""Signatures that identify a user's own files: HMAC-SHA256 with a key that only the user can read.

The key is made when it is first needed, in ``$XDG_CONFIG_HOME/rollmill`` (``~/.config/rollmill``), with mode 0600.
Where nothing can be kept there, it is in a folder of the user's own in the temporary directory, and where that is not
possible either, in the memory of this process: nothing fails for want of a key. The first of these signs; all that can
be read verify, because a run may have been signed when another one was the first.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_FILE = "signing_key"
_BYTES = 32
_in_memory = secrets.token_bytes(_BYTES)


class Verdict(enum.Enum):
    """The result of verifying a signature."""

    VALID = "valid"
    CHANGED = "changed"  # Signed with this user's key, and changed since.
    FOREIGN = "foreign"  # Signed with another key.
    UNSIGNED = "unsigned"


class SigningKey(NamedTuple):
    """The user's key.

    Attributes:
        secret: The key.
        place: The file that holds it; None if only this process has it.
        note: Why it is not in the user's configuration folder, in one line; empty if it is.
    """

    secret: bytes
    place: Path | None
    note: str = ""

    @property
    def name(self) -> str:
        """An identifier of the key, which does not reveal it."""
        return hashlib.sha256(b"rollmill key\0" + self.secret).hexdigest()[:16]


def signing_key() -> SigningKey:
    """The key of this user, created if there is none; never raises."""
    reasons = []
    for folder in (_configuration_folder, _temporary_folder):
        try:
            place = folder(make=True) / _FILE
            secret = _read_or_make(place)
        except (OSError, ValueError) as error:
            reasons.append(str(error))
            continue
        note = ""
        if reasons:
            note = (
                f"the key that signs this user's runs is kept in {place}, because {reasons[0]}: when it is gone, runs "
                "of environments of your own are resumed and evaluated with --trust; a folder for it is set with "
                "XDG_CONFIG_HOME"
            )
        return SigningKey(secret, place, note)
    return SigningKey(
        _in_memory,
        None,
        f"no key that signs this user's runs can be kept, because {' and '.join(reasons)}: later, runs of environments "
        "of your own are resumed and evaluated with --trust; a folder for it is set with XDG_CONFIG_HOME",
    )


def sign(purpose: str, parts: Iterable[bytes]) -> dict[str, str]:
    """A signature of a content, as JSON data.

    Args:
        purpose: What the content is for: what was signed for one purpose is not accepted for another.
        parts: The content; how it is divided belongs to it.
    """
    key = signing_key()
    return {"key": key.name, "hmac": _digest(key.secret, purpose, parts)}


def verify(purpose: str, parts: Iterable[bytes], signature: object) -> Verdict:
    """Verifies the signature of a content; see :func:`sign`."""
    if not isinstance(signature, Mapping):
        return Verdict.UNSIGNED
    name, given = signature.get("key"), signature.get("hmac")
    if not isinstance(name, str) or not isinstance(given, str):
        return Verdict.UNSIGNED
    key = next((key for key in _readable_keys() if key.name == name), None)
    if key is None:
        return Verdict.FOREIGN
    is_valid = hmac.compare_digest(_digest(key.secret, purpose, parts).encode(), given.encode(errors="replace"))
    return Verdict.VALID if is_valid else Verdict.CHANGED


def _readable_keys() -> Iterator[SigningKey]:
    """All existing keys of this user; creates none."""
    for folder in (_configuration_folder, _temporary_folder):
        with contextlib.suppress(OSError, ValueError):
            place = folder(make=False) / _FILE
            yield SigningKey(_read(place), place)
    yield SigningKey(_in_memory, None)


def _digest(secret: bytes, purpose: str, parts: Iterable[bytes]) -> str:
    code = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (b"rollmill signature 1", purpose.encode(), *parts):
        code.update(len(part).to_bytes(8, "little"))
        code.update(part)
    return code.hexdigest()


def _configuration_folder(*, make: bool) -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(given):  # The specification says to ignore relative ones.
        folder = Path(given) / "rollmill"
    else:
        home = "" if os.environ.get("HOME") == "" else os.path.expanduser("~")
        if not os.path.isabs(home) or not os.path.isdir(home):
            raise FileNotFoundError(f"there is no home folder{f' {home}' if home else ''}")
        folder = Path(home) / ".config" / "rollmill"
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _temporary_folder(*, make: bool) -> Path:
    folder = Path(tempfile.gettempdir()) / f"rollmill-{os.geteuid()}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can use")
    return folder


def _read_or_make(place: Path) -> bytes:
    """The key in a file.

    Raises:
        OSError: It cannot be read or made.
        ValueError: The file holds something else.
    """
    try:
        return _read(place)
    except FileNotFoundError:
        pass
    descriptor, aside = tempfile.mkstemp(dir=place.parent, prefix=f".{_FILE}-")  # With mode 0600.
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_bytes(_BYTES).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(aside, place)  # If several processes do this at once, one of them creates the key.
    finally:
        os.unlink(aside)
    return _read(place)


def _read(place: Path) -> bytes:
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_own(place, os.fstat(descriptor))
        content = os.read(descriptor, 4 * _BYTES)
    finally:
        os.close(descriptor)
    with contextlib.suppress(ValueError):
        secret = bytes.fromhex(content.decode("ascii"))
        if len(secret) == _BYTES:
            return secret
    raise ValueError(
        f"{place} does not hold a key ({2 * _BYTES} hexadecimal digits): restore it from a backup, or remove it, and a "
        "new key is made, with which earlier runs need --trust"
    )


def _require_own(place: Path, found: os.stat_result) -> None:
    """Raise unless it is a file that this user alone can read."""
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f"{place} is not a file: remove it")
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{place} belongs to the user {found.st_uid}, but this process runs as {os.geteuid()}: run as that user, "
            f"or give the file to the user {os.geteuid()} (chown)"
        )
    if found.st_mode & 0o077:
        raise PermissionError(f"{place} can be read by others (mode {found.st_mode & 0o777:o}): run chmod 600 on it")

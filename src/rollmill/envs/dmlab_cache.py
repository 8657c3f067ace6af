"""A cache of generated DeepMind Lab levels in a folder.

Many levels generate and compile a map for each episode, which takes longer than playing it. The engine asks its level
cache for a map by a key, which it derives from the map, and otherwise hands it the map that it has made
(docs/users/python_api.md of google-deepmind/lab, "Level Cache").
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import uuid
import zipfile
from typing import NamedTuple

from rollmill.envs.errors import RollmillEnvError

_log = logging.getLogger(__name__)

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_PARTIAL = ".partial-"


class InvalidLevelCache(RollmillEnvError):  # noqa: N818 - as in rollmill.envs.errors
    """The folder of the level cache cannot be used."""


class CacheSize(NamedTuple):
    """What a folder holds: the number of maps, and their bytes."""

    maps: int
    nbytes: int


class LevelCache:
    """Level cache of a ``deepmind_lab.Lab``, which calls :meth:`fetch` and :meth:`write`.

    Any number of environments, processes and machines may share a folder: a map appears in it by an atomic rename, so
    that a reader sees a whole map or none. Maps are never changed or deleted, and there is no limit on the size of the
    folder (see :meth:`size`). Maps are only copied here; the engine, which loads them, trusts them, so the folder must
    be writable by trusted users alone.

    A folder or map that fails while a run is in progress costs time, not the run: the engine generates the map.

    Attributes:
        hits: Maps found.
        misses: Maps not found.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder, which is created if it does not exist.

        Raises:
            InvalidLevelCache: It cannot be created, read or written.
        """
        self._folder = os.path.abspath(os.path.expanduser(folder))
        self._has_failed = False
        self.hits = self.misses = 0
        try:
            os.makedirs(self._folder, exist_ok=True)
            os.listdir(self._folder)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=_PARTIAL):
                pass
        except OSError as error:
            raise InvalidLevelCache(
                f"env.dmlab.level_cache={os.fspath(folder)!r} cannot be used ({error}): give a folder that can be "
                "created, read and written, or leave it out"
            ) from error

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of a key to ``pk3_path``, if there is one; returns whether there is."""
        path = self._path_of(key)
        # A map is a zip archive. Anything else counts as a miss, and the next write replaces it.
        found = zipfile.is_zipfile(path) and self._copy(path, pk3_path)
        self.hits += found
        self.misses += not found
        return found

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map at ``pk3_path`` for a key, unless there is one already."""
        path = self._path_of(key)
        if not zipfile.is_zipfile(path):
            self._copy(pk3_path, path)

    def size(self) -> CacheSize:
        """Measure the folder; takes time proportional to the number of maps."""
        with os.scandir(self._folder) as entries:
            sizes = [e.stat().st_size for e in entries if e.is_file() and not e.name.startswith(_PARTIAL)]
        return CacheSize(len(sizes), sum(sizes))

    def _path_of(self, key: str) -> str:
        """The file of a key; keys that are no plain file names are hashed, so that none leaves the folder."""
        plain = _PLAIN_KEY.fullmatch(key) is not None
        name = key if plain else "sha256-" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self._folder, name)

    def _copy(self, source: str, target: str) -> bool:
        """Copy a file by an atomic rename; returns whether that succeeded, and logs the first failure."""
        partial = os.path.join(os.path.dirname(target), f"{_PARTIAL}{uuid.uuid4().hex}")
        try:
            with open(source, "rb") as reader, open(partial, "xb") as writer:
                shutil.copyfileobj(reader, writer)
            os.replace(partial, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            if not self._has_failed:
                _log.warning("the level cache %s failed, maps are generated instead: %s", self._folder, error)
            self._has_failed = True
            return False
        return True

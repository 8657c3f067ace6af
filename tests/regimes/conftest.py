"""What the tests of whole runs share: a tiny run, and a look at what it leaves behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # For `--import faulty_envs`, in processes of a run too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (str(Path(__file__).parent), os.environ.get("PYTHONPATH")) if part
)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Whatever a test starts, directly or not, must be gone with it, and it must leave nothing in /dev/shm."""
    from leftovers import nothing_is_left

    with nothing_is_left():
        yield

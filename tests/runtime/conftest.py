"""What processes run must be importable in them: they inherit this process's ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmill.runtime import sweep
from rollmill.runtime.supervisor import Supervisor

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as entered:
        yield entered
    assert sweep.members(entered.run_id) == []

"""What all tests share: one thread for each process, and a configuration folder that is not the user's."""

from __future__ import annotations

import os

import pytest

# Before anything imports torch. Tests run in parallel, and more threads than cores slow all of them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _configuration_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    # In the environment, so that the programs that tests start have it, too.
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("configuration"))

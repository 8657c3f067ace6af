"""What all tests share: a configuration folder that is not the user's."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _configuration_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    # In the environment, so that the programs that tests start have it, too.
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("configuration"))

"""What all tests share: one thread for each process, and a configuration folder that is not the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

# Before anything imports torch. Tests run in parallel, and more threads than cores slow all of them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is not a defect.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a slow test two hours, also where it is run alone."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(7200))


@pytest.fixture(scope="session", autouse=True)
def _configuration_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    # In the environment, so that the programs that tests start have it, too.
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("configuration"))


@pytest.fixture(scope="session", autouse=True)
def _trackers_stay_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No tracker of a test may use a network or the user's own files."""
    folder = tmp_path_factory.mktemp("trackers")
    os.environ["WANDB_MODE"] = "offline"
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        os.environ[name] = str(folder / "wandb")
    os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlflow").as_uri()
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # Its stores in databases need more packages than mlflow-skinny.
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")  # It is read once, at the import.


@pytest.fixture(autouse=True)
def _search_path_of_interpreters() -> Iterator[None]:
    """Leave the variable as it was that commands and runs set for the processes that they start."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
    else:
        os.environ["PYTHONSAFEPATH"] = before

"""Two ranks on one host as a process group: what they exchange, and where they listen."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """What each rank's checks came to; they run once for all tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_summed_gradients_keep_their_parameters_layout(results: list[dict[str, Any]]) -> None:
    for of_rank in results:
        found = of_rank["fused adam"]
        assert found["layouts"] == [[True] * 4] * 3, found
        assert max(found["difference"].values()) < 1e-6
        assert found["statistics"] == [1.0, 2.0]

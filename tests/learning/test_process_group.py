"""Two ranks on one host as a process group: exchange of data and listening addresses."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rollmill.learning import process_group
from rollmill.runtime.ranks import Ranks

# 127.0.0.1 as /proc/net/tcp writes it.
LOOPBACK = socket.inet_aton("127.0.0.1")[:: 1 if sys.byteorder == "big" else -1].hex().upper()
PROGRAM = Path(__file__).with_name("rank_program.py")


def free_port() -> int:
    """Find a port outside of the ephemeral range, which no connection takes before rank 0 listens."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(max(1024, first_given - 10_000), first_given), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    pytest.skip("no port is free")


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """Results of each rank's checks, which run once for all tests."""
    port = free_port()
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)}
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


def test_only_plain_data_is_exchanged(results: list[dict[str, Any]]) -> None:
    ones = [[1.0] * 3] * 2
    for rank, of_rank in enumerate(results):
        found = of_rank["plain data"]
        assert found["gathered"] == [[0, 0, [], ones], [1, 1000, [0, 1, 2, 3, 4], ones]], found
        assert found["state"] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert found["compared"] == [0, 10]
        assert len(found["refused"]) == 2 - rank
        assert all("Ranks is no plain data" in message for message in found["refused"])


def test_pickle_in_the_store_raises(results: list[dict[str, Any]]) -> None:
    assert "is no plain data" in results[1]["pickles"], results


def test_ranks_on_one_host_listen_on_loopback_only(results: list[dict[str, Any]]) -> None:
    # Rank 0 hosts the store; gloo listens on each rank.
    for of_rank, fewest in zip(results, (2, 1), strict=True):
        found = of_rank["listening"]
        assert len(found) >= fewest, found
        assert set(found) == {LOOPBACK}, found


def test_ranks_notice_soon_that_torchrun_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(process_group, "_LAUNCHER_S", 1.0)
    began = time.monotonic()
    ranks = Ranks(rank=1, world_size=2, local_rank=1, local_world_size=2)
    with pytest.raises(process_group.RankLostError, match=r"rank 1 could not reach torchrun at .* within 1 s"):
        process_group.open_store(ranks, "meeting", 120.0)
    assert time.monotonic() - began < 60.0

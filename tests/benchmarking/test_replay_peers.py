"""The benchmark of prioritised replays against peers: its turns, why some are absent, and its verdict on samples."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Draws half of each batch uniformly, and has weights that grow with the priority.
UNFAITHFUL = """
import sys
sys.path.insert(0, {peers!r})
from replay_measure import main
from replay_numpy import NumpyAdapter

class Unfaithful(NumpyAdapter):
    def sample(self, batch):
        slots = self._tree.find(self._generator.random(batch) * self._tree.nodes[1])
        slots[::2] = self._generator.integers(0, self._size, len(slots[::2]))
        priority = self._tree.nodes[slots + self._tree.first_leaf]
        return slots, priority / priority.min(), tuple(ring[slots] for ring in self._data)

main({{"default": Unfaithful}})
"""


@pytest.fixture(scope="module")
def replay_peers() -> Iterator[ModuleType]:
    spec = spec_from_file_location("replay_peers", BENCHMARKS / "replay_peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["replay_peers"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["replay_peers"]


def test_measures_those_that_are_there_and_says_why_others_are_not(replay_peers: ModuleType, tmp_path: Path) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("raise SystemExit('no memory')")
    silent = tmp_path / "silent.py"
    silent.write_text("print('{\"size\": 1}', flush=True); raise SystemExit('ended early')")
    peer = replay_peers.Peer
    peers = [
        peer(name="numpy", script="replay_numpy.py"),
        peer(name="failing", script=str(failing)),
        peer(name="silent", script=str(silent)),
        peer(name="small", script="replay_numpy.py", greatest_capacity=100),
        peer(name="missing", script="replay_numpy.py", imports="no_such_module"),
    ]
    results = replay_peers.measure(peers, 1000, 32, 3, seconds=0.05)
    assert list(results) == ["numpy", "failing", "silent", "small", "missing"]
    numpy = results["numpy"]
    assert (numpy["size"], numpy["batch"], len(numpy["rounds"])) == (1000, 32, 3)
    for operation in replay_peers.OPERATIONS:
        rounds = [turn[f"{operation}_us"] for turn in numpy["rounds"]]
        assert numpy[f"{operation}_us"] == sorted(rounds)[1] > 0
    assert results["failing"] == {"absent": "failed (1): no memory"}
    assert results["silent"] == {"absent": "failed (1): ended early"}
    assert "not tried beyond 100" in results["small"]["absent"]
    assert "does not import no_such_module" in results["missing"]["absent"]
    text = replay_peers.table(results, 1000, 32)
    assert "| failing | absent: failed (1): no memory |" in text
    assert f"| numpy | {numpy['sample_us']:,.1f} |" in text


def test_tells_right_samples_from_wrong_ones(replay_peers: ModuleType, tmp_path: Path) -> None:
    unfaithful = tmp_path / "unfaithful.py"
    unfaithful.write_text(UNFAITHFUL.format(peers=str(BENCHMARKS / "peers")))
    peers = [
        replay_peers.Peer(name="right", script="replay_numpy.py"),
        replay_peers.Peer(name="wrong", script=str(unfaithful)),
    ]
    results = replay_peers.verify(peers, 1000, seconds=1.0)
    right, wrong = results["right"], results["wrong"]
    assert abs(right["z"]) < 5
    assert abs(right["low_draws_z"]) < 5
    assert right["weights_relative_error_if_normalised_by"]["batch"] < 1e-4  # of float32 priorities
    assert right["wrong_fields"] == 0
    assert wrong["z"] > 100
    assert wrong["low_draws_over_expected"] > 10
    assert wrong["weights_relative_error_up_to_a_factor"] > 1

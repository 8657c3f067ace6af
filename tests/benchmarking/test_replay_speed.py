"""``rollmill bench replay``: every figure is there, and peers that are not say why."""

from pathlib import Path

import pytest

from rollmill.benchmarking import replay_speed
from rollmill.native import tree_alignment

SMALL = {"capacity": 1000, "capacities": (500, 1000), "fanouts": (2, 16), "batches": (4, 8), "workers": (1, 2)}
# For what does not depend on the figures.
FEWEST = SMALL | {"fanouts": (2,), "batches": (4,), "workers": (1,)}


@pytest.fixture(autouse=True)
def small_load(monkeypatch: pytest.MonkeyPatch) -> None:
    # Writing 115 MB of fresh memory, for each kind of lock twice, takes most of the time.
    monkeypatch.setattr(replay_speed, "_LOAD_CAPACITY", 1024)


@pytest.mark.slow
def test_every_figure_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as in the command
    result = replay_speed.run(0.2, environments=tmp_path, **SMALL)
    operations = ("sample_us", "update_us", "insert64_us")
    peers = result["peers"]
    for name in ("cpprb", "tianshou", "torchrl", "rllib"):
        assert "--install-peers creates it" in peers[name]["absent"]
    for times in (result, peers["numpy-binary-tree"], *result["capacity"].values(), *result["batch"].values()):
        assert all(times[operation] > 0 for operation in operations)
    ours, numpy = (sum(times[operation] for operation in operations) for times in (result, peers["numpy-binary-tree"]))
    assert result["ratio_to_best_peer"] == pytest.approx(numpy / ours)
    assert list(result["fanout"]) == ["2", "16"]
    for places in result["fanout"].values():
        assert set(places) == {"aligned", "unaligned"}
        for times in places.values():
            assert all(times[name] > 0 for name in ("find_us", "update_us", "insert64_us"))
    assert set(result["growth"]) == {"tree_sample", "tree_update", "sample", "update"}
    assert set(result["load"]) == {"robust", "nested", "sharded", "global", "over_write", "none"}
    for kinds in result["load"].values():
        for numbers in kinds.values():
            assert list(numbers) == ["1", "2"]
            assert all(report["insert"]["p99_us"] > 0 for report in numbers.values())
    for numbers in result["load_ratios"].values():
        others = {f"faster_than_{locking}" for locking in ("nested", "sharded", "global", "over_write")}
        assert set(numbers["2"]) == {*others, "time_of_none"}


def test_without_a_checkout_ours_is_measured_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_speed, "_CHECKOUT", tmp_path)
    result = replay_speed.run(0.1, **FEWEST)
    assert "measured from a checkout" in result["peers"]["all"]["absent"]
    assert result["ratio_to_best_peer"] is None
    assert result["sample_us"] > 0


def test_a_peer_that_does_not_import_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-peers-replay-cpprb" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv(replay_speed.PEERS_VARIABLE, str(tmp_path))
    result = replay_speed.run(0.1, **FEWEST)
    assert "cannot import cpprb; --install-peers repairs it" in result["peers"]["cpprb"]["absent"]


def test_it_takes_time() -> None:
    with pytest.raises(ValueError, match="seconds is 0; give a positive number of seconds"):
        replay_speed.run(0)


@pytest.mark.parametrize(
    "changes",
    [{"capacity": 1}, {"fanout": 3}, {"offset": 2}, {"offset": 64}, {"batch": 0}, {"inserted": 0}, {"inserted": 101}],
)
def test_a_tree_that_makes_no_sense_is_not_measured(changes: dict[str, int]) -> None:
    usual = {"capacity": 100, "fanout": 16, "offset": 0, "batch": 8, "inserted": 8}
    with pytest.raises(ValueError, match="a power of two from 2 to 256, offset a multiple of 4 below 64, and inserted"):
        tree_alignment(**{**usual, **changes}, seconds=0.01)

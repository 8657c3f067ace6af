"""The queue of networks to be evaluated, and the results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollmill.storage.checkpoint_file import load_checkpoint
from rollmill.storage.evaluations import EVALUATIONS_FILE, EvaluationQueue


def steps_of(queue: EvaluationQueue) -> list[int]:
    return [int(path.stem.removeprefix("steps_")) for path in queue.pending()]


def test_the_first_network_and_one_in_each_interval_are_due(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 100)
    assert queue.is_scheduled
    for steps in (0, 40, 99, 100, 130, 199, 350, 399, 400, 1000):
        if queue.is_due(steps):
            queue.leave({}, steps)
    assert steps_of(queue) == [0, 100, 350, 400, 1000]


def test_without_an_interval_nothing_is_due_but_may_be_left(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path)
    assert not queue.is_scheduled
    assert not queue.is_due(0)
    assert not queue.is_due(10**9)
    assert queue.pending() == []
    queue.leave({}, 7)
    assert steps_of(queue) == [7]


def test_a_network_is_left_once_and_none_that_is_older(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 10)
    for value, steps in ((1.0, 20), (2.0, 20), (3.0, 19)):
        queue.leave({"weight": torch.full((2,), value)}, steps)
    (path,) = queue.pending()
    assert path == tmp_path / "evaluations" / "steps_000000000020.pt"
    state = load_checkpoint(path)
    assert state["model"]["weight"].tolist() == [1.0, 1.0]
    assert state["counters"] == {"agent_steps": 20}


def test_the_oldest_network_comes_first_and_other_files_do_not_count(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 1)
    for steps in (9, 10, 100, 10**12, 10**13):
        queue.leave({}, steps)
    for name in ("steps_5.failed", "steps_000000000007.new", "steps_.pt", "notes.pt"):
        (tmp_path / "evaluations" / name).touch()
    assert steps_of(queue) == [9, 10, 100, 10**12, 10**13]
    queue.leave({}, 10**14)
    assert not list((tmp_path / "evaluations").glob("*.new")), "those of a process that was killed are removed"


def test_a_resumed_queue_continues_after_what_waits_and_what_was_found(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 100)
    queue.leave({}, 250)
    queue.found(queue.pending()[0], {"agent_steps": 250, "mean_return": 1.0})
    again = EvaluationQueue(tmp_path, 100)
    assert [again.is_due(steps) for steps in (250, 299, 300)] == [False, False, True]
    again.leave({}, 310)
    waiting = EvaluationQueue(tmp_path, 100)
    assert [waiting.is_due(steps) for steps in (399, 400)] == [False, True]


def test_a_result_is_recorded_and_its_network_leaves_the_queue(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 1)
    assert queue.nbytes == 0
    assert queue.records() == []
    sizes = []
    for steps in (30, 20):
        queue.leave({}, steps)
    for value, steps in ((1.0, 30), (2.0, 20), (3.0, 30)):
        queue.found(tmp_path / "evaluations" / f"steps_{steps:012d}.pt", {"agent_steps": steps, "mean_return": value})
        sizes.append(queue.nbytes)
    assert queue.pending() == []
    assert sizes == sorted(set(sizes)), "it grows with each result"
    assert queue.records() == [{"agent_steps": 20, "mean_return": 2.0}, {"agent_steps": 30, "mean_return": 3.0}]
    # A line for each result, as JSON.
    lines = (tmp_path / EVALUATIONS_FILE).read_text().splitlines()
    assert [json.loads(line)["mean_return"] for line in lines] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "damage",
    [b'{"agent_steps": 5, "mean', b"", b"7", b'{"a": 1}', b'{"agent_steps": null}', b'{"agent_steps": 1e400}', b"\xff"],
)
def test_a_damaged_line_costs_no_other_result(tmp_path: Path, damage: bytes) -> None:
    queue = EvaluationQueue(tmp_path, 1)
    queue.found(tmp_path / "none", {"agent_steps": 1})
    with (tmp_path / EVALUATIONS_FILE).open("ab") as file:
        file.write(b"\n" + damage)
    queue.found(tmp_path / "none", {"agent_steps": 2})
    assert EvaluationQueue(tmp_path).records() == [{"agent_steps": 1}, {"agent_steps": 2}]


def test_a_network_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    queue = EvaluationQueue(tmp_path, 1)
    queue.leave({}, 3)
    (path,) = queue.pending()
    assert queue.failed(path)
    assert EvaluationQueue(tmp_path).pending() == []
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["steps_000000000003.failed"]
    queue.leave({}, 4)
    assert not queue.failed(*queue.pending())
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["steps_000000000004.failed"]


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, rollmill.storage.evaluations; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

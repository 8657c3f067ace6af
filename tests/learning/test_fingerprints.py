"""Fingerprints of updates: what changes them, and the first difference between two runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rollmill.learning.fingerprints import (
    FINGERPRINTS_FILE,
    Difference,
    Fingerprints,
    first_difference,
    read_fingerprints,
)
from rollmill.learning.trajectories import Trajectories

STEPS, ROWS = 3, 2


class Run:
    """A network, its optimiser and batches of two trajectories, the same for each one that is made."""

    def __init__(self, folder: Path, *, first_update: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        random = np.random.default_rng(0)
        self.folder = folder
        self.observation = {"obs": random.standard_normal((2, STEPS + 1, ROWS, 2)).astype(np.float32)}
        self.arrays: dict[str, Any] = {
            "reset": random.random((STEPS + 1, ROWS)) < 0.5,
            "value": random.standard_normal((STEPS + 1, ROWS)).astype(np.float32),
            "rnn_state": random.standard_normal((ROWS, 3)).astype(np.float32),
            **{
                name: random.random((STEPS, ROWS)).astype(np.float32)
                for name in ("reward", "terminated", "truncated", "valid", "log_prob", "action_continuous")
            },
        }
        # Of the second slot.
        self.index = np.arange((STEPS + 1) * ROWS).reshape(STEPS + 1, ROWS) + (STEPS + 1) * ROWS
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.optimiser = torch.optim.Adam(self.model.parameters())
        self.file = Fingerprints(folder / FINGERPRINTS_FILE, self.observation, first_update=first_update)

    def step(self) -> None:
        self.model(torch.ones(4, 2) + torch.arange(4.0).unsqueeze(1)).square().sum().backward()
        self.optimiser.step()

    def add(self, update: int) -> None:
        self.file.add(update, Trajectories(self.arrays, self.index, (1,), ()), self.model, [self.optimiser])


def lines_of(folder: Path, change: Callable[[Run], object] = lambda run: None) -> list[dict[str, Any]]:
    """The fingerprints of three updates, of which the second follows a change."""
    run = Run(folder)
    for update in range(3):
        run.step()
        if update == 1:
            change(run)
        run.add(update)
    return read_fingerprints(folder)


def _set(array: Any, at: Any) -> None:
    array[at] = 1 - array[at] if array.dtype != bool else ~array[at]


def test_equal_runs_have_equal_files(tmp_path: Path) -> None:
    one, other = lines_of(tmp_path / "a"), lines_of(tmp_path / "b")
    assert one == other
    assert [line["update"] for line in one] == [0, 1, 2]
    assert len({line["chain"] for line in one}) == 3
    assert first_difference(one, other) is None


@pytest.mark.parametrize(
    ("change", "part", "step"),
    [
        (lambda run: _set(run.observation["obs"], (1, 2, 0)), "environment", 2),
        (lambda run: _set(run.arrays["reset"], (0, 1)), "environment", 0),
        # What an action has caused belongs to the step that it has led to.
        (lambda run: _set(run.arrays["reward"], (0, 1)), "environment", 1),
        (lambda run: _set(run.arrays["terminated"], (2, 0)), "environment", 3),
        (lambda run: _set(run.arrays["truncated"], (1, 0)), "environment", 2),
        (lambda run: _set(run.arrays["valid"], (1, 1)), "environment", 2),
        (lambda run: _set(run.arrays["rnn_state"], (1, 2)), "inference", 0),
        (lambda run: _set(run.arrays["value"], (3, 1)), "inference", 3),
        (lambda run: _set(run.arrays["log_prob"], (1, 1)), "inference", 1),
        (lambda run: _set(run.arrays["action_continuous"], (2, 1)), "inference", 2),
        (lambda run: run.model[0].weight.data[1, 0].add_(1e-6), "learner", None),
        (lambda run: run.model[1].running_mean[0].add_(1e-6), "learner", None),
        (lambda run: run.optimiser.state[run.model[0].bias]["exp_avg_sq"][1].mul_(1.001), "learner", None),
    ],
)
def test_any_change_is_found_in_its_part_and_step(
    tmp_path: Path, change: Callable[[Run], object], part: str, step: int | None
) -> None:
    base, other = lines_of(tmp_path / "a"), lines_of(tmp_path / "b", change)
    assert first_difference(base, other) == Difference(1, part, step)
    assert base[0] == other[0]
    assert base[2]["chain"] != other[2]["chain"], "the chain shows earlier differences, too"


def test_observations_of_other_slots_do_not_count(tmp_path: Path) -> None:
    base = lines_of(tmp_path / "a")
    assert lines_of(tmp_path / "b", lambda run: run.observation["obs"][0].fill(0)) == base


def test_hashes_are_those_of_the_bytes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step()
    run.add(7)
    (line,) = read_fingerprints(tmp_path)
    arrays = run.arrays
    bytes_of_step = [run.observation["obs"][1, 1], arrays["reset"][1]]
    bytes_of_step += [arrays[name][0] for name in ("reward", "terminated", "truncated", "valid")]
    expected = hashlib.sha256(b"".join(array.tobytes() for array in bytes_of_step)).hexdigest()
    assert line["environment"][1] == expected[:16]
    last = hashlib.sha256(arrays["value"][STEPS].tobytes()).hexdigest()
    assert line["inference"][STEPS] == last[:16], "nothing is chosen at the last observation"
    chain = line.pop("chain")
    assert chain == hashlib.sha256(json.dumps(line).encode()).hexdigest()


def test_networks_in_bfloat16_have_fingerprints(tmp_path: Path) -> None:
    lines = []
    for name, change in (("a", 0.0), ("b", 1.0)):
        run = Run(tmp_path / name)
        run.model.bfloat16()
        run.model[0].bias.data[0] += change
        run.add(0)
        lines.append(read_fingerprints(tmp_path / name))
    assert first_difference(*lines) == Difference(0, "learner", None)


def test_a_resumed_run_has_the_file_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole = lines_of(tmp_path / "whole")
    lines_of(tmp_path / "resumed")
    # From the checkpoint after the first update on; the others were written and are learned once more.
    run = Run(tmp_path / "resumed", first_update=1)
    assert read_fingerprints(tmp_path / "resumed") == whole[:1]
    run.step()
    for update in (1, 2):
        run.step()
        run.add(update)
    assert read_fingerprints(tmp_path / "resumed") == whole
    fresh = Run(tmp_path / "resumed")
    assert read_fingerprints(fresh.folder) == []


def test_only_updates_that_both_runs_have_are_compared(tmp_path: Path) -> None:
    base = lines_of(tmp_path / "a")
    assert first_difference(base, base[:1]) is None
    assert first_difference([], base) is None


def test_the_first_difference_names_the_part() -> None:
    def line(update: int, environment: str, inference: str, learner: str) -> dict[str, Any]:
        chain = f"{update}{environment}{inference}{learner}"
        parts = {"environment": list(environment), "inference": list(inference)}
        return {"update": update, **parts, "learner": learner, "chain": chain}

    base = [line(0, "abc", "xyz", "p"), line(1, "abc", "xyz", "p")]
    assert first_difference(base, base) is None
    # The action at step 1 differs, and what it leads to: the action was first.
    assert first_difference(base, [base[0], line(1, "abd", "xqz", "p")]) == Difference(1, "inference", 1)
    # The environment showed something else at step 1 before anything was chosen there.
    assert first_difference(base, [base[0], line(1, "adc", "xqz", "p")]) == Difference(1, "environment", 1)
    assert first_difference(base, [line(0, "abc", "xyz", "q"), base[1]]) == Difference(0, "learner", None)

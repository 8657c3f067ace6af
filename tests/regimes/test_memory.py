"""Memory that does not suffice: what needs it, how much there is, and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.regimes import running
from rollmill.runtime import cgroups
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart, NotEnoughMemory
from rollmill.runtime.events import ProcessFailed, lacks_memory

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def run(preset: str, run_dir: Path, algo: str | None = None, **changes: Any) -> None:
    from faulty_envs import TINY

    of_on_policy = ("learner.epochs", "learner.minibatches") if algo else ()
    settings = {key: value for key, value in TINY.items() if key not in of_on_policy}
    # The memory of a GPU is not counted.
    devices = {"learner.device": "cpu", "inference.device": "cpu"}
    config = rollmill.make_config(preset, {**settings, **devices, **changes}, algo=algo)
    running.run(config.resolved(), run_dir, quiet=True)


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, r"\d+ slots of 8 steps of \d row\(s\)"),
        pytest.param(
            {"algo": "dqn", "learner.batch_size": 16, "learner.micro_batch": "auto"},
            r"a replay of [\d,]+ agent steps; .* 3 batches of 16 samples of 2 observations",
            marks=pytest.mark.slow,
        ),
        pytest.param({"regime": "lockstep", "learner.batch_size": 64}, r"\d+ slots of 8 steps", marks=pytest.mark.slow),
    ],
    ids=["async", "replay", "lockstep"],
)
def test_pictures_beyond_all_memory_are_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], slots: str
) -> None:
    with pytest.raises(NotEnoughMemory, match=rf"of memory are needed and .* are available .*{slots}") as error:
        run("test/big", tmp_path, **changes)
    text = str(error.value)
    assert "parameters of the learner's network (the largest is " in text
    assert "('obs' is uint8 of shape (6000, 6000, 3)): make it smaller" in text
    assert "Error" not in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize(
    ("where", "who"),
    [
        ("in its constructor", r"probe .* ran out of memory: .*allocate.* are available now"),
        pytest.param(
            "in training", r"learner .* ran out of memory: .* Known of this run: .* slots", marks=pytest.mark.slow
        ),
    ],
)
def test_an_allocation_that_fails_is_explained(tmp_path: Path, where: str, who: str) -> None:
    with pytest.raises(ProcessFailed, match=who) as error:
        run("test/walk", tmp_path, **{"model.encoder": f"test/greedy {where}"})
    assert "faulty_envs.py" in str(error.value)


def test_what_is_needed_beside_an_arena_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "available_memory", lambda: 1 << 30)
    layout = ArenaLayout().add("a", 1 << 20, "uint8")
    parts = [MemoryPart("an array", 1 << 20), MemoryPart("a network", 3 << 30), MemoryPart("nothing", 0)]
    with pytest.raises(NotEnoughMemory) as error:
        Arena.create(layout, parts=parts, advice="Use less.")
    assert str(error.value) == (
        "3.0 GiB of memory are needed and 1.0 GiB are available (the machine's free memory or the container's limit, "
        "whichever is less): 3.0 GiB for a network; 1.0 MiB for an array. Use less."
    )
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    Arena.create(layout, parts=parts[:1]).close()


def test_exceptions_that_speak_of_memory_are_known() -> None:
    import torch

    cause = ValueError("a step failed")
    cause.__cause__ = MemoryError()
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), cause):
        assert lacks_memory(error)
    with pytest.raises(RuntimeError) as allocation:
        torch.empty(1 << 50)
    assert lacks_memory(allocation.value)
    assert not lacks_memory(ValueError("out of memory"))
    assert not lacks_memory(RuntimeError("shapes differ"))

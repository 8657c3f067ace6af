"""The file of events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollmill.pbt.config import PbtConfig
from rollmill.pbt.history import (
    HISTORY_FILE,
    PbtEvent,
    append_event,
    cut_history,
    events_until,
    read_history,
    without_effect,
)

EVENT = PbtEvent(
    policy="a",
    agent_steps=1200,
    kind="replaced",
    source="b",
    generation=1,
    scores={"a": -3.0, "b": 2.5},
    numbers={"learning_rate": 0.00012},
)


def test_events_are_read_as_written_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    events = [EVENT, replace(EVENT, policy="b", kind="kept", source=None)]
    for event in events:
        append_event(tmp_path, event)
    with (tmp_path / HISTORY_FILE).open("ab") as file:
        file.write(b'\xff\n{"policy": "a", "agent_st')
    assert read_history(tmp_path) == events


def test_events_after_a_policy_s_checkpoint_are_removed(tmp_path: Path) -> None:
    cut_history(tmp_path, {"a": 1})
    assert not (tmp_path / HISTORY_FILE).exists()
    for steps, policy in ((0, "a"), (0, "b"), (10, "a"), (11, "b"), (20, "a")):
        append_event(tmp_path, replace(EVENT, policy=policy, agent_steps=steps))
    cut_history(tmp_path, {"a": 2, "b": 1})
    assert [(event.policy, event.agent_steps) for event in read_history(tmp_path)] == [("a", 0), ("b", 0), ("a", 10)]


def test_events_until_a_checkpoint_without_the_population_are_counted(tmp_path: Path) -> None:
    assert events_until(tmp_path, "a", 100) == 0
    for steps, policy in ((0, "a"), (0, "b"), (10, "a"), (11, "b"), (20, "a")):
        append_event(tmp_path, replace(EVENT, policy=policy, agent_steps=steps))
    assert [events_until(tmp_path, policy, 10) for policy in ("a", "b", "c")] == [2, 1, 0]


def test_a_population_that_decided_nothing_is_told(tmp_path: Path) -> None:
    config = PbtConfig(every=5000, window=20, objective="rating")
    append_event(tmp_path, replace(EVENT, kind="start", source=None, scores={}))
    (text,) = without_effect(tmp_path, config)
    assert "has compared no policies: none has made pbt.every=5,000 agent steps" in text
    append_event(tmp_path, replace(EVENT, kind="mutated", source=None, scores={"a": 0.0, "b": 0.0}))
    (text,) = without_effect(tmp_path, config)
    assert "the policies were equal (pbt.objective=rating)" in text
    append_event(tmp_path, EVENT)
    assert without_effect(tmp_path, config) == []


def test_an_event_in_one_line() -> None:
    assert EVENT.describe() == (
        "pbt: policy a at 1,200 steps: goes on from policy b (a -3, b 2.5); learning_rate 0.00012"
    )

"""When a number that was set takes the place of its schedule, on every rank and after a resume."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollmill.learning.live_numbers import NUMBERS, LiveNumbers, Request, add_numbers_to_layout, control_block
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.control import NOT_SET, ControlBlock
from rollmill.runtime.plain_data import decode, encode


class Side:
    """A main process and a learner in one, with what the learner has noted."""

    def __init__(self) -> None:
        layout = ArenaLayout()
        add_numbers_to_layout(layout)
        self.arena = Arena.create(layout, poison=True)
        self.main: ControlBlock = control_block(self.arena, create=True)
        self.notes: list[str] = []
        self.numbers = LiveNumbers(control_block(self.arena), note=self.notes.append)

    def begin(self, batch: int, *others: LiveNumbers) -> None:
        news = decode(encode(self.numbers.read(batch)))  # As ranks exchange it.
        for numbers in (self.numbers, *others):
            numbers.take(news, batch)


def test_a_set_number_holds_from_its_batch_on_until_it_is_returned() -> None:
    side = Side()
    side.main.change_numbers({"learning_rate": 0.1}, from_batch=2)
    side.main.change_numbers({"learning_rate": NOT_SET}, from_batch=4)
    used = []
    for batch in range(6):
        side.begin(batch)
        used.append(side.numbers.value("learning_rate", 7.0))
    assert used == [7.0, 7.0, 0.1, 0.1, 7.0, 7.0]
    assert not side.notes
    assert side.numbers.value("clip_range", 0.2) == 0.2


def test_without_a_batch_it_holds_from_the_next_one_on() -> None:
    side = Side()
    side.begin(8)
    side.main.change_numbers({"entropy_coef": 0.0})
    side.begin(9)
    assert side.numbers.is_set("entropy_coef")
    assert side.numbers.value("entropy_coef", 1.0) == 0.0
    assert side.main.number("entropy_coef") == 0.0
    assert math.isnan(side.main.number("learning_rate"))


def test_a_late_change_is_reported_and_holds_at_once() -> None:
    side = Side()
    side.main.change_numbers({"learning_rate": 0.5}, from_batch=3)
    side.begin(5)
    assert side.numbers.value("learning_rate", 1.0) == 0.5
    assert side.notes == [
        "learning_rate=0.5 was set from batch 3 on, but 5 is the next that begins: it holds from batch 5 on"
    ]


def test_numbers_that_the_learner_sets_itself_hold_at_once_and_are_told() -> None:
    side = Side()
    side.main.change_numbers({"clip_range": 0.5}, from_batch=1)
    side.begin(1)
    side.numbers.set({"discount": 0.9, "adam_beta1": 0.8})
    assert side.numbers.value("discount", 0.99) == 0.9
    assert side.main.number("adam_beta1") == 0.8
    assert side.numbers.state_dict()["set"] == {"clip_range": 0.5, "discount": 0.9, "adam_beta1": 0.8}


def test_every_rank_uses_the_same_numbers_and_requests() -> None:
    side, other = Side(), LiveNumbers()
    side.main.change_numbers({"learning_rate": 0.25}, from_batch=1)
    side.main.request(Request.CHECKPOINT)
    for batch in range(2):
        side.begin(batch, other)
        assert other.value("learning_rate", 9.0) == side.numbers.value("learning_rate", 9.0)
    assert other.value("learning_rate", 9.0) == 0.25
    for numbers in (side.numbers, other):
        assert numbers.take_request(Request.CHECKPOINT)
        assert not numbers.take_request(Request.CHECKPOINT)
        assert not numbers.take_request(Request.EVALUATION)
    assert other.read(2) == ([], [1, 0])


def test_a_resumed_run_keeps_what_is_set_and_what_waits() -> None:
    side, resumed = Side(), Side()
    side.main.change_numbers({"learning_rate": 0.25})
    side.main.change_numbers({"reward_scale": 3.0, "learning_rate": NOT_SET}, from_batch=10)
    side.begin(4)
    state: Any = decode(encode(side.numbers.state_dict()))
    resumed.numbers.load_state_dict(state)
    assert resumed.main.number("learning_rate") == 0.25
    for batch in (4, 9, 10):
        resumed.begin(batch)
        assert resumed.numbers.value("learning_rate", 1.0) == (0.25 if batch < 10 else 1.0)
    assert resumed.numbers.value("reward_scale", 1.0) == 3.0
    assert not resumed.notes


def test_a_changed_setting_holds_after_a_resume() -> None:
    said = {"learning_rate": "0.1", "clip_range": "0.2", "discount": "0.9, mutated", "entropy_coef": "0"}
    before, told = LiveNumbers(settings=said), list[str]()
    before.set({"learning_rate": 0.25, "clip_range": 0.5, "discount": 0.8})
    before.take(([("entropy_coef", 0.5, 10), ("clip_range", 0.6, 10)], [0, 0]), 4)
    state: Any = decode(encode(before.state_dict()))
    plain = LiveNumbers(settings=said)
    plain.load_state_dict(state)
    assert plain.state_dict() == before.state_dict()
    other = LiveNumbers(
        settings={**said, "learning_rate": "0.2", "discount": "0.9", "entropy_coef": "1"}, log=told.append
    )
    other.load_state_dict(state)
    assert {key: other.state_dict()[key] for key in ("set", "pending")} == {
        "set": {"clip_range": 0.5},
        "pending": [["clip_range", 0.6, 10]],
    }
    assert [line.split()[0] for line in told] == ["discount", "entropy_coef", "learning_rate"]
    del state["settings"]  # As in checkpoints of earlier versions.
    other.load_state_dict(state)
    assert other.state_dict()["set"] == before.state_dict()["set"]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_rules_in_words(name: str) -> None:
    rule = NUMBERS[name]
    assert rule.holds(0.5)
    assert not rule.holds(-1.0)
    assert rule.holds(0.0) == ("above 0" not in rule.text)

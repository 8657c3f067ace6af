"""The control block: numbers, changes for later batches, and requests, from one process to others."""

from __future__ import annotations

import math

import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.control import AT_ONCE, NOT_SET, Change, ControlBlock, ControlFullError, add_to_layout

NUMBERS, REQUESTS = ("rate", "weight"), ("copy", "trial")


def blocks(count: int = 2, *, policies: int = 1) -> list[ControlBlock]:
    layout = ArenaLayout()
    for policy in range(policies):
        add_to_layout(layout, numbers=NUMBERS, requests=REQUESTS, policy=policy)
    arena = Arena.create(layout, poison=True)
    made = []
    for policy in range(policies):
        for index in range(count):
            block = ControlBlock(arena, numbers=NUMBERS, requests=REQUESTS, policy=policy, create=not index)
            made.append(block)
    return made


def test_changes_arrive_in_their_order_once() -> None:
    main, child = blocks()
    assert child.take_changes(0) == []
    main.change_numbers({"rate": 0.1, "weight": 2.0}, from_batch=7)
    main.change_numbers({"rate": -0.0})
    assert child.take_changes(3) == [Change("rate", 0.1, 7), Change("weight", 2.0, 7), Change("rate", -0.0, AT_ONCE)]
    assert child.take_changes(4) == []
    assert main.begun == 4


def test_a_number_that_is_not_set_is_nan() -> None:
    main, child = blocks()
    assert math.isnan(main.number("rate"))
    child.publish({"weight": 1 / 3})
    assert main.number("weight") == 1 / 3
    child.publish({"rate": 5e-324})
    assert math.isnan(main.number("weight"))
    assert main.number("rate") == 5e-324
    main.change_numbers({"rate": NOT_SET})
    assert math.isnan(child.take_changes(0)[0].value)


def test_nothing_has_begun_at_first_and_requests_are_counted() -> None:
    main, child = blocks()
    assert main.begun == -1
    assert child.requested() == [0, 0]
    main.request("trial")
    main.request("trial")
    assert child.requested() == [0, 2]


def test_a_change_that_has_no_room_is_refused_and_the_others_stay() -> None:
    main, child = blocks()
    for index in range(1024):
        main.change_numbers({"rate": float(index)})
    with pytest.raises(ControlFullError, match="1024 changes wait to be read"):
        main.change_numbers({"rate": 0.0})
    assert [change.value for change in child.take_changes(0)] == list(map(float, range(1024)))
    main.change_numbers({"rate": 1.0, "weight": 2.0})
    assert len(child.take_changes(1)) == 2


def test_policies_have_blocks_of_their_own() -> None:
    first, of_first, second, of_second = blocks(policies=2)
    second.change_numbers({"rate": 3.0})
    second.request("copy")
    assert of_first.take_changes(5) == []
    assert of_first.requested() == [0, 0]
    assert of_second.take_changes(0) == [Change("rate", 3.0, AT_ONCE)]
    assert (first.begun, second.begun) == (5, 0)

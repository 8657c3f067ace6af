"""What a callback may ask of a run: which numbers it sets and from which batch on, and what is refused."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollmill
from rollmill.callback import Callback, LiveRun
from rollmill.learning.live_numbers import Request, add_numbers_to_layout, control_block
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.control import AT_ONCE, Change, ControlBlock

_OF_REPLAY = "learning_rate, reward_scale, max_grad_norm, adam_beta1, adam_beta2"


class Scene:
    """A run as callbacks see it, and the learner's end of its control block."""

    def __init__(self, **settings: Any) -> None:
        layout = ArenaLayout()
        add_numbers_to_layout(layout)
        arena = Arena.create(layout, poison=True)
        self.main = main = control_block(arena, create=True)
        self.learner: ControlBlock = control_block(arena)
        self.started: list[str] = []
        self.run = LiveRun(
            Path("runs/one"),
            rollmill.make_config("gym/CartPole-v1", settings),
            {"0": main},
            start_evaluator=lambda: self.started.append("evaluator"),
        )

    def changes(self, batch: int = 0) -> list[Change]:
        return self.learner.take_changes(batch)

    def requested(self) -> dict[str, int]:
        return dict(zip(Request.ALL, self.learner.requested(), strict=True))


def test_a_run_begins_without_metrics_and_unstopped() -> None:
    run = Scene(num_envs=16).run
    assert run.dir == Path("runs/one")
    assert run.config.num_envs == 16
    assert run.metrics == {}
    assert not run.is_stop_wanted
    run.stop()
    assert run.is_stop_wanted


def test_numbers_are_set_from_the_next_batch_on_or_from_a_later_one() -> None:
    scene = Scene()
    scene.run.set(learning_rate=0, entropy_coef=0.5)
    assert scene.changes() == [Change("learning_rate", 0.0, AT_ONCE), Change("entropy_coef", 0.5, AT_ONCE)]
    scene.run.set(from_batch=7, clip_range=0.25)
    assert scene.changes() == [Change("clip_range", 0.25, 7)]
    assert scene.changes() == []


def test_numbers_of_numpy_are_numbers() -> None:
    scene = Scene()
    scene.run.set(learning_rate=np.float32(0.5), from_batch=np.int64(6))
    assert scene.changes(6) == [Change("learning_rate", 0.5, 6)]


def test_none_returns_a_number_to_its_schedule() -> None:
    scene = Scene()
    scene.run.set(reward_scale=None)
    ((name, value, from_batch),) = scene.changes()
    assert (name, from_batch) == ("reward_scale", AT_ONCE)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            {"learning_rte": 0.1},
            r"run\.set\(learning_rte=0\.1\): this run takes learning_rate, entropy_coef, clip_range, ",
        ),
        ({"learning_rate": -0.1}, "learning_rate=-0.1: give a finite number of 0 or more, or None for its schedule"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": True}, "learning_rate=True"),
        ({"entropy_coef": float("inf")}, "entropy_coef=inf"),
        ({"clip_range": 0.0}, "clip_range=0.0: give a finite number above 0"),
        ({"clip_range": 1.0}, r"run\.set\(clip_range=1\.0\): with clip_kind='symmetric' give at most 0\.99"),
        ({"reward_scale": "1"}, "reward_scale='1'"),
    ],
)
def test_numbers_that_are_not_allowed_are_refused_and_nothing_is_set(numbers: dict[str, Any], message: str) -> None:
    scene = Scene()
    with pytest.raises(ValueError, match=message):
        scene.run.set(**{"entropy_coef": 0.5, **numbers})
    assert scene.changes() == []


@pytest.mark.parametrize("from_batch", [4, 5, -1, np.int64(5), 6.0, True, "7"])
def test_a_batch_that_has_begun_or_is_none_is_refused(from_batch: Any) -> None:
    scene = Scene()
    scene.learner.take_changes(5)
    has_begun = isinstance(from_batch, int | np.integer) and from_batch is not True
    why = "batch 5 has begun; give a later one, or omit from_batch" if has_begun else "give an integer, or omit it"
    expected = rf"run\.set\(from_batch={'5' if has_begun and from_batch == 5 else repr(from_batch)}\): {why}"
    with pytest.raises(ValueError, match=expected):
        scene.run.set(from_batch=from_batch, learning_rate=0.1)
    assert scene.changes(5) == []
    scene.run.set(from_batch=6, learning_rate=0.1)
    assert scene.changes(6) == [Change("learning_rate", 0.1, 6)]


def test_before_the_first_batch_numbers_may_hold_from_it_on() -> None:
    scene = Scene()
    scene.run.set(from_batch=0, learning_rate=0.1)
    assert scene.changes() == [Change("learning_rate", 0.1, 0)]


@pytest.mark.parametrize(
    ("settings", "name", "allowed"),
    [
        ({"regime": "replay", "off_policy.algorithm": "dqn"}, "entropy_coef", _OF_REPLAY),
        ({"regime": "replay", "off_policy.algorithm": "dqn"}, "discount", _OF_REPLAY),
        (
            {"learner.clip_kind": "none"},
            "clip_range",
            "learning_rate, entropy_coef, value_coef, discount, gae_lambda, reward_scale, max_grad_norm, adam_beta1, "
            "adam_beta2",
        ),
        (
            {"learner.advantage": "vtrace", "learner.optimiser": "rmsprop"},
            "gae_lambda",
            "learning_rate, entropy_coef, clip_range, value_coef, discount, reward_scale, max_grad_norm",
        ),
    ],
)
def test_a_run_takes_only_numbers_that_it_has(settings: dict[str, Any], name: str, allowed: str) -> None:
    scene = Scene(**settings)
    with pytest.raises(ValueError, match=rf"run\.set\({name}=0.1\): this run takes {allowed}$"):
        scene.run.set(**{name: 0.1})
    scene.run.set(learning_rate=0.1, reward_scale=2.0)
    assert [change.name for change in scene.changes()] == ["learning_rate", "reward_scale"]


def test_a_number_is_checked_against_the_policies_that_it_is_for() -> None:
    given = {"population.policies": "a,b", "policy.a.learner.clip_kind": "reciprocal", "learner.clip_range": 0.5}
    scenes = {name: Scene() for name in "ab"}
    run = LiveRun(
        Path("runs/two"),
        rollmill.make_config("gym/CartPole-v1", given),
        {name: scene.main for name, scene in scenes.items()},
        start_evaluator=lambda: None,
    )
    run.set(policy="a", clip_range=1.2)
    assert scenes["a"].changes() == [Change("clip_range", 1.2, AT_ONCE)]
    for policy in ("b", None):
        with pytest.raises(ValueError, match="with clip_kind='symmetric' give at most"):
            run.set(policy=policy, clip_range=1.2)
    assert scenes["b"].changes() == []
    with pytest.raises(ValueError, match=r"run\.set\(size=1\): policy b takes learning_rate"):
        run.set(policy="b", size=1)


def test_requests_are_counted_and_an_evaluation_starts_its_process() -> None:
    scene = Scene()
    assert scene.requested() == {"checkpoint": 0, "evaluation": 0}
    scene.run.save()
    scene.run.save()
    assert scene.requested() == {"checkpoint": 2, "evaluation": 0}
    assert scene.started == []
    scene.run.evaluate()
    assert scene.requested() == {"checkpoint": 2, "evaluation": 1}
    assert scene.started == ["evaluator"]


def test_a_run_that_is_over_holds_no_memory_and_takes_no_requests() -> None:
    scene = Scene()
    memory = weakref.ref(scene.main)
    run = scene.run
    run.let_go()
    del scene.main
    assert memory() is None
    run.set(learning_rate=1.0)
    run.save()
    run.evaluate()
    assert scene.started == []
    assert scene.requested() == {"checkpoint": 0, "evaluation": 0}


def test_a_callback_that_overrides_nothing_does_nothing() -> None:
    scene = Scene()
    callback = Callback()
    callback.on_start(scene.run)
    callback.on_report(scene.run, {"agent_steps": 1})
    callback.on_checkpoint(scene.run, Path("checkpoint.pt"))
    callback.on_end(scene.run, "total_steps")
    assert scene.changes() == []
    assert scene.requested() == {"checkpoint": 0, "evaluation": 0}
    assert not scene.run.is_stop_wanted

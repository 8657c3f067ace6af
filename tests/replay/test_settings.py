"""A replay's settings: what is refused, what its bytes depend on, and that a file's settings come back."""

import json

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay
from rollmill.replay.fields import flattened, observations_of
from rollmill.replay.settings import Settings

FIELDS = {"obs": ((2,), "float32"), "reward": ((), "float32")}


def make(**changes):
    specs = flattened(changes.pop("fields", FIELDS))
    defaults = {
        "capacity": 100,
        "num_envs": 2,
        "n_step": 1,
        "discount": 0.99,
        "alpha": 0.6,
        "beta": 0.4,
        "epsilon": 1e-6,
        "weights": "batch",
        "max_priority_decay": 1.0,
        "stratified": False,
        "uniform": False,
        "next_of": observations_of(specs),
        "fanout": 16,
        "seed": 0,
    }
    return Settings(specs=specs, **{**defaults, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity is 0; it must be a whole number from 1"),
        ({"capacity": 1.5}, "capacity is 1.5"),
        ({"capacity": 7}, "capacity is 7, and n_step=1 steps of num_envs=2 and more .*; give at least 8$"),
        ({"capacity": 15, "n_step": 3}, "capacity is 15, .*; give at least 16$"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"n_step": 0}, "n_step is 0"),
        ({"n_step": True}, "n_step is True"),
        ({"n_step": 1025}, "n_step is 1025; it must be a whole number from 1 to 1024"),
        ({"discount": 1.1}, "discount is 1.1; it must be 0 to 1"),
        ({"discount": "0.9"}, "discount is '0.9'; it must be 0 to 1"),
        ({"discount": float("nan")}, "discount is nan"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": True}, "alpha is True"),
        ({"beta": -1}, "beta is -1"),
        ({"beta": float("inf")}, "beta is inf; it must be finite"),
        ({"epsilon": 0.0}, "epsilon is 0.0; .* never drawn again"),
        ({"epsilon": 1e-12, "alpha": 4.0}, "epsilon is 1e-12 and alpha 4.0; .* give another epsilon, or a smaller"),
        ({"epsilon": 1e300, "alpha": 1.0}, r"epsilon is 1e\+300 and alpha 1.0"),
        ({"max_priority_decay": 0.0}, "max_priority_decay is 0.0"),
        ({"fanout": 3}, "fanout is 3; choose one of 2, 4"),
        ({"fanout": 4.0}, "fanout is 4.0; it must be a whole number"),
        ({"weights": "sum"}, "weights is 'sum'; choose 'batch', 'global' or 'none'"),
        ({"seed": -1}, "seed is -1"),
        ({"stratified": "no"}, "stratified is 'no'; it must be True or False"),
        ({"uniform": None}, "uniform is None; it must be True or False"),
        ({"next_of": ["image"]}, "next_of names 'image'; it may name observations among the fields"),
        ({"next_of": ["reward"]}, "next_of names 'reward'"),
        ({"next_of": ()}, "num_envs is 2 for independent transitions"),
        ({"fields": {}}, "fields is empty"),
        ({"fields": {"obs": ((), "int8")}}, "steps in order need a field 'reward'"),
        ({"fields": {"obs": ((), "int8"), "reward": ((), "float64")}}, "steps in order need a field 'reward'"),
        ({"fields": {"obs": ((), "int8"), "reward": ((1,), "float32")}}, "steps in order need a field 'reward'"),
        ({"fields": {**FIELDS, "discount": ((), "float32")}}, "a field is called 'discount'"),
        ({"fields": {**FIELDS, "terminated": ((), "int8")}}, "field 'terminated' must be"),
        ({"fields": {**FIELDS, "terminated": ((1,), "bool")}}, "field 'terminated' must be"),
        ({"fields": {**FIELDS, "truncated": ((), "bool")}}, "field 'truncated' of steps in order: every step says it"),
        ({"fields": {**FIELDS, "valid": ((), "bool")}}, "field 'valid' of steps in order: every step says it"),
        ({"fields": {**FIELDS, "next_obs": ((2,), "float32")}, "next_of": ["obs"]}, "there is a field 'next_obs', too"),
        (
            {"fields": {**FIELDS, "next_obs": ((2,), "float32")}, "n_step": 3},
            "field 'next_obs' is of one step later, and with n_step=3 .* leave the field out and name 'obs' in next_of",
        ),
    ],
)
def test_settings_that_no_replay_can_have_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_uniform_replay_has_no_least_priority():
    assert make(epsilon=1e-12, alpha=4.0, uniform=True).uniform


def test_numbers_of_numpy_are_taken_for_those_of_python(tmp_path):
    settings = {"n_step": 2, "discount": 0.5, "alpha": 0.25, "stratified": True, "fanout": 32, "seed": 7}
    changed = {name: np.array(value)[()] for name, value in settings.items()}
    replay = PrioritizedReplay(np.int64(100), FIELDS, **changed, beta=np.float32(0.5), path=tmp_path / "replay")
    again = PrioritizedReplay.open(tmp_path / "replay")
    assert again._settings == replay._settings == PrioritizedReplay(100, FIELDS, **settings, beta=0.5)._settings


def test_only_steps_in_order_have_flags_of_their_own():
    flags = {"terminated": ((), "bool")}
    linked = make(fields={**FIELDS, **flags})
    assert linked.is_linked
    assert [field.name for field in linked.fields] == ["obs", "reward"]
    independent = make(fields={**FIELDS, **flags, "valid": ((), "bool")}, next_of=(), num_envs=1)
    assert not independent.is_linked
    assert [field.name for field in independent.fields] == ["obs", "reward", "terminated", "valid"]
    assert make(next_of=(), n_step=2).is_linked


def test_the_geometry_is_what_the_bytes_depend_on():
    found = make(n_step=3, discount=0.5, weights="global", fanout=32).geometry()
    assert found == {
        "capacity": 100,
        "fields": [("f", [2], True), ("f", [], False)],
        "linked": True,
        "reward": 1,
        "n_step": 3,
        "discount": 0.5,
        "fanout": 32,
        "minimum": True,
    }
    independent = make(next_of=(), num_envs=1, weights="global", uniform=True).geometry()
    assert (independent["linked"], independent["reward"], independent["minimum"]) == (False, -1, False)
    make().shape()  # The native ring takes it.


def test_settings_come_back_from_text():
    fields = {"obs": {"a": ((4, 3), "uint8"), "b": (2, "float16")}, "reward": ((), "f4"), "terminated": ((), "?")}
    settings = make(
        fields=fields, n_step=5, beta=0.25, weights="none", stratified=True, next_of=("obs/b",), seed=2**64 - 1
    )
    again = Settings.from_json(settings.to_json())
    assert again.fields == settings.fields
    assert again.geometry() == settings.geometry()
    assert again.to_json() == settings.to_json()
    assert (again.seed, again.beta, again.stratified, list(again.next_of)) == (2**64 - 1, 0.25, True, ["obs/b"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: [],
        lambda content: {**content, "specs": None},
        lambda content: {**content, "specs": {"x": [[2]]}},
        lambda content: {**content, "unknown": 1},
        lambda content: {name: value for name, value in content.items() if name != "alpha"},
        lambda content: {name: value for name, value in content.items() if name != "specs"},
        lambda content: {**content, "capacity": 0},
    ],
)
def test_text_that_is_something_else_is_refused(damage):
    content = json.loads(make().to_json())
    with pytest.raises(ValueError, match=r"settings of a replay cannot be read|capacity is 0|not enough values"):
        Settings.from_json(json.dumps(damage(content)))
    with pytest.raises(ValueError, match="Expecting value"):
        Settings.from_json("settings")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, ""),
        ({"seed": 5, "alpha": 0.1, "beta": 1.0, "stratified": True}, ""),
        ({"fanout": 64, "weights": "global"}, ""),  # Of the tree, which is rebuilt.
        ({"capacity": 99, "n_step": 2}, "capacity, n_step"),
        ({"discount": 0.9}, "discount"),
        ({"next_of": (), "num_envs": 1}, "fields, linked, reward"),
        ({"fields": {"obs": ((3,), "float32"), "reward": ((), "float32")}}, "fields"),
        ({"fields": {"obs": ((2,), "int32"), "reward": ((), "float32")}}, "fields"),
        ({"fields": {"obs/a": ((2,), "float32"), "reward": ((), "float32")}}, "fields"),  # Another name alone.
        ({"fields": {"image": ((3,), "uint8"), "reward": ((), "float32")}, "next_of": ["image"]}, "fields"),
    ],
)
def test_settings_on_which_a_copy_depends_are_told_apart(changes, difference):
    assert make().describe_difference(make(**changes)) == difference
    assert make(**changes).describe_difference(make()) == difference

"""What a run says of its environment before it begins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import rollmill
from rollmill.regimes.caveats import caveats_of
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec


def spec_of(item: ArraySpec, *, repeats: bool | None = None) -> EnvSpec:
    action = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
    return EnvSpec(name="mine", observation={"obs": item}, action=action, repeats=repeats)


@pytest.mark.parametrize(
    ("item", "is_named"),
    [
        (ArraySpec(shape=(3, 64, 64), dtype="float32", low=0, high=255), True),
        (ArraySpec(shape=(64, 64, 3), dtype="float16", low=0, high=255), True),
        (ArraySpec(shape=(64, 64, 3), dtype="float32", low=0, high=1), False),
        (ArraySpec(shape=(64, 64, 3), dtype="float32"), False),
        (ArraySpec(shape=(64, 64, 3), dtype="uint8", low=0, high=255), False),
        (ArraySpec(shape=(7, 7, 3), dtype="float32", low=0, high=10), False),
        (ArraySpec(shape=(4,), dtype="float32", low=0, high=1), False),
    ],
)
def test_a_float_picture_that_is_not_scaled_is_named(item: ArraySpec, is_named: bool) -> None:
    lines = caveats_of(rollmill.make_config("gym/CartPole-v1", {}), spec_of(item))
    assert [line.startswith("observation 'obs' of mine looks like an image") for line in lines] == [True] * is_named
    normalised = rollmill.make_config("gym/CartPole-v1", {"model.normalise_observations": True})
    assert caveats_of(normalised, spec_of(item)) == []


@pytest.mark.parametrize(
    ("item", "is_named"),
    [
        (ArraySpec(shape=(2,), dtype="float32", seen=101325.0), True),
        (ArraySpec(shape=(2,), dtype="int64", low=0, high=1000), True),
        (ArraySpec(shape=(2,), dtype="float32", low=-28, high=28, seen=5.0), False),
        (ArraySpec(shape=(2,), dtype="float32"), False),
        (ArraySpec(shape=(128,), dtype="uint8", low=0, high=255), False),
        (ArraySpec(shape=(2, 1260), dtype="int16", low=-32768, high=32767), False),  # sound
        (ArraySpec(shape=(1,), dtype="int64", low=0, high=499), False),  # one-hot
        (ArraySpec(shape=(2,), dtype="float32", low=-3.4e38, high=3.4e38, seen=2.0), False),
    ],
)
def test_large_numbers_that_nothing_scales_are_named(item: ArraySpec, is_named: bool) -> None:
    replay = rollmill.make_config("gym/CartPole-v1", algo="dqn")
    (*lines,) = caveats_of(replay, spec_of(item))
    assert [" has numbers up to " in line and "no normaliser" in line for line in lines] == [True] * is_named
    unscaled = rollmill.make_config("gym/CartPole-v1", {"model.normalise_observations": False})
    assert ["nothing scales it" in line for line in caveats_of(unscaled, spec_of(item))] == [True] * is_named
    scaled = rollmill.make_config("gym/CartPole-v1", {"model.normalise_observations": True})
    assert caveats_of(scaled, spec_of(item)) == []


def test_an_environment_that_does_not_repeat_is_named_in_lockstep_alone() -> None:
    spec = spec_of(ArraySpec(shape=(4,), dtype="float32"), repeats=False)
    (line,) = caveats_of(rollmill.make_config("gym/CartPole-v1", {"regime": "lockstep"}), spec)
    assert line == (
        "mine does not repeat: two episodes with the same seed and the same actions show different things. This run "
        "will not be reproducible. Draw all randomness from the generator of reset(seed=...), one for each "
        "environment, and keep it where a reset gets no seed (gymnasium's self.np_random does)."
    )
    assert caveats_of(rollmill.make_config("gym/CartPole-v1", {}), spec) == []


@pytest.mark.parametrize(
    ("low", "high", "is_named"),
    [
        ((-1.0, -1.0), (1.0, 1.0), False),
        ((-2.0,), (2.0,), False),
        ((0.0,), (1.0,), False),
        ((0.1,), (1.0,), False),
        ((-1.0, 3.0), (1.0, 3.0), False),  # The second is no choice.
        ((-float("inf"),), (float("inf"),), False),
        ((-1e-3,), (1e-3,), True),
        ((-1.0, 0.0), (1.0, 1000.0), True),
        ((20.0,), (21.0,), True),
    ],
)
def test_actions_of_another_scale_than_the_policy_are_named(
    low: tuple[float, ...], high: tuple[float, ...], is_named: bool
) -> None:
    action = ActionSpec(heads=(BoxHead(low=low, high=high, shape=(len(low),)),), structure="box")
    spec = EnvSpec(name="mine", observation={"obs": ArraySpec(shape=(4,), dtype="float32")}, action=action)
    lines = caveats_of(rollmill.make_config("gym/CartPole-v1", {}), spec)
    assert ["Set model.scale_actions=true" in line for line in lines] == [True] * is_named
    others: list[tuple[dict[str, object], str | None]] = [({"model.squash_actions": True}, None), ({}, "sac")]
    if math.isfinite(low[0]):
        others += [({"model.scale_actions": True}, None), ({"model.scale_actions": "auto"}, None)]
    for settings, algo in others:
        assert caveats_of(rollmill.make_config("gym/CartPole-v1", settings, algo=algo), spec) == []


@pytest.mark.parametrize(
    ("n_step", "agents", "is_named"), [(3, 10, False), (3, 11, True), (1, 32, False), (1, 0, False)]
)
def test_transitions_that_slots_cannot_hold_are_named(n_step: int, agents: int, is_named: bool) -> None:
    names = tuple(f"agent_{index}" for index in range(agents))
    spec = replace(spec_of(ArraySpec(shape=(4,), dtype="float32")), agents=names)
    settings: dict[str, object] = {"replay.n_step": n_step, "rollout_length": 32}
    lines = caveats_of(rollmill.make_config("gym/CartPole-v1", settings, algo="dqn"), spec)
    assert ["Use a rollout_length of 33 or more" in line for line in lines] == [True] * is_named
    assert caveats_of(rollmill.make_config("gym/CartPole-v1", {"rollout_length": 2}), spec) == []


@pytest.mark.parametrize(
    ("policies", "num_envs", "agents", "enough"),
    [(12, 64, 1, 192), (9, 64, 1, 144), (8, 64, 1, None), (1, 4, 1, None), (12, 32, 2, 96), (12, 48, 2, None)],
)
def test_few_environments_for_many_policies_are_named(
    policies: int, num_envs: int, agents: int, enough: int | None
) -> None:
    settings = {"population.policies": policies, "num_envs": num_envs}
    spec = spec_of(ArraySpec(shape=(4,), dtype="float32"))
    if agents > 1:
        spec = replace(spec, agents=tuple(f"player_{index}" for index in range(agents)))
    lines = caveats_of(rollmill.make_config("gym/CartPole-v1", settings), spec)
    assert [line.endswith(f"num_envs={enough} is faster") for line in lines] == [True] * (enough is not None)


def test_the_environments_that_are_enough_divide_into_tasks_and_policies() -> None:
    settings = {"env.tasks": "gym/CartPole-v1,gym/Acrobot-v1,gym/MountainCar-v0", "num_envs": 12}
    config = rollmill.make_config("gym/CartPole-v1", {**settings, "population.policies": 2})
    (line,) = caveats_of(config, spec_of(ArraySpec(shape=(4,), dtype="float32")))
    assert line.endswith("num_envs=36 is faster")


def test_rows_of_policies_in_a_replay_are_not_named() -> None:
    spec = spec_of(ArraySpec(shape=(4,), dtype="float32"))
    assert caveats_of(rollmill.make_config("gym/CartPole-v1", {"population.policies": 2}, algo="dqn"), spec) == []


def test_what_environments_say_themselves_is_told() -> None:
    spec = replace(spec_of(ArraySpec(shape=(4,), dtype="float32")), caveats=("two of the keys do nothing",))
    config = rollmill.make_config("gym/CartPole-v1", {})
    line = "mine: two of the keys do nothing"
    assert caveats_of(config, spec) == [line]
    assert caveats_of(config, replace(spec, name="both", caveats=(), tasks=(spec, spec))) == [line] * 2

"""What a run of several tasks refuses, and how its environments are divided into groups."""

from __future__ import annotations

from typing import Any

import pytest

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.settings import config as config_module
from rollmill.settings.config import Config
from rollmill.settings.option_values import OptionError
from rollmill.settings.task_checks import check_tasks
from rollmill.settings.value_checks import ConfigError

TWO = "gym/CartPole-v1,gym/Acrobot-v1"
THREE = "gym/CartPole-v1,gym/Acrobot-v1,gym/MountainCar-v0"


def config_of(tasks: str = TWO, algo: str | None = None, **settings: Any) -> Config:
    sizes = {"num_envs": 24, "rollout_length": 16, "learner.batch_size": 384, "learner.minibatches": 1}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return rollmill.make_config(tasks, {"num_envs": 24} | given if algo else sizes | given, algo=algo)


def with_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(config_module, "usable_cores", lambda: cores)


def groups_of(config: Config) -> tuple[int, int]:
    """(groups, rollout workers) of a configuration whose numbers are resolved."""
    assert config.envs_per_group != "auto"
    assert config.rollout.num_workers != "auto"
    assert config.num_envs % config.envs_per_group == 0
    return config.num_envs // config.envs_per_group, config.rollout.num_workers


@pytest.mark.parametrize(
    "names",
    [
        ("atari/battle_zone", "atari/BattleZone"),
        ("dmlab/rooms_watermaze", "dmlab/contributed/dmlab30/rooms_watermaze"),
        ("dmlab/rooms_collect_good_objects_train", "dmlab/rooms_collect_good_objects_test"),
    ],
)
def test_names_of_one_task_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"env.tasks names '{names[0]}' and '{names[1]}', which have the same human"):
        EnvConfig(name=",".join(names), tasks=names)


def test_one_environment_is_not_checked_for_tasks() -> None:
    config = config_of("gym/CartPole-v1", num_envs=7)
    assert config.groups_multiple == 1
    assert config.env.tasks == ()


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        (TWO, {"num_envs": 7}, r"num_envs=7 does not divide into 2 tasks: use 6 or 8\."),
        (THREE, {"num_envs": 2}, r"num_envs=2 does not divide into 3 tasks: use 3\."),
        (
            TWO,
            {"num_envs": 10, "population__policies": "a,b"},
            r"num_envs=10 does not divide into 2 tasks for each of 2 policies: use 8 or 12\.",
        ),
        (
            TWO,
            {"task_share": "compute", "regime": "lockstep"},
            r"task_share='compute' with regime='lockstep': .* use task_share='samples', or regime='async'\.",
        ),
        (
            THREE,
            {"task_share": "compute", "rollout__num_workers": 4},
            r"rollout\.num_workers=4 with task_share='compute': each of the 3 tasks .* multiple of 3, or 'auto'\.",
        ),
        (
            TWO,
            {"population__policies": "a,b", "population__assignment": "shuffled"},
            r"population\.assignment='shuffled' with several tasks: .* use 'fixed'\.",
        ),
        (
            THREE,
            {"learner__batch_size": 32},
            r"learner\.batch_size=32 is 2 trajectories of rollout_length=16, fewer than the 3 tasks, .*"
            r"use at least 48\.",
        ),
        (
            TWO,
            {"population__policies": "a,b", "policy__b__learner__batch_size": 16},
            r"policy\.b: learner\.batch_size=16 .*is 1 trajectories of rollout_length=16, fewer than the 2 tasks",
        ),
    ],
)
def test_settings_that_no_run_of_several_tasks_can_use_are_refused(
    tasks: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        config_of(tasks, **settings)


@pytest.mark.parametrize(
    ("tasks", "settings"),
    [
        (TWO, {"num_envs": 8}),
        (TWO, {"num_envs": 12, "population__policies": "a,b"}),
        (TWO, {"num_envs": 12, "population__policies": "a,b", "population__assignment": "fixed"}),
        (THREE, {"task_share": "compute", "rollout__num_workers": 3}),
        (THREE, {"rollout__num_workers": 4}),
        (THREE, {"learner__batch_size": 48}),
        (THREE, {"learner__batch_size": 16, "task_share": "compute"}),
    ],
)
def test_what_is_next_to_the_refused_is_taken(tasks: str, settings: dict[str, Any]) -> None:
    config = config_of(tasks, **settings)
    check_tasks(config)
    config.resolved()


def test_the_batch_of_a_replay_needs_no_share_of_each_task() -> None:
    config = config_of(THREE, "dqn", learner__batch_size=2)
    assert config.in_replay
    assert groups_of(config.resolved())[0] % 3 == 0
    with pytest.raises(OptionError, match="num_envs=7 does not divide into 2 tasks"):
        config_of(TWO, "dqn", num_envs=7)


def test_the_number_of_groups_is_a_multiple_of_tasks_and_policies() -> None:
    assert config_of(THREE).groups_multiple == 3
    assert config_of(THREE, population__policies="a,b").groups_multiple == 6


@pytest.mark.parametrize("regime", ["async", "lockstep"])
@pytest.mark.parametrize(
    ("tasks", "policies", "every"), [(TWO, "1", 2), (THREE, "1", 3), (TWO, "a,b", 4), (THREE, "a,b", 6)]
)
@pytest.mark.parametrize("cores", [1, 2, 5, 8])
def test_every_policy_plays_every_task_in_as_many_groups(
    regime: str, tasks: str, policies: str, every: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, cores)
    config = config_of(tasks, num_envs=48, regime=regime, population__policies=policies, learner__batch_size=768)
    groups, workers = groups_of(config.resolved())
    assert groups % every == 0
    assert workers <= groups


@pytest.mark.parametrize(
    ("cores", "num_envs", "expected"),
    [
        # As many groups as two for each worker, and a multiple of 3.
        (1, 24, (3, 1)),
        (2, 24, (6, 2)),
        (4, 24, (12, 4)),
        (4, 48, (12, 4)),
        # Rather more than eight.
        (4, 27, (9, 4)),
        (64, 24, (24, 12)),
    ],
)
def test_groups_of_tasks_in_the_async_regime(
    cores: int, num_envs: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, cores)
    assert groups_of(config_of(THREE, num_envs=num_envs).resolved()) == expected


@pytest.mark.parametrize(("num_envs", "groups"), [(12, 3), (48, 3), (192, 12), (240, 15), (768, 12), (480, 15)])
@pytest.mark.parametrize("cores", [1, 3, 8])
def test_groups_of_tasks_in_lockstep_do_not_depend_on_the_machine(
    num_envs: int, groups: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, cores)
    config = config_of(THREE, num_envs=num_envs, regime="lockstep", learner__batch_size=num_envs * 16)
    found, workers = groups_of(config.resolved())
    assert found == groups
    assert groups % workers == 0, "workers of an iteration have as many groups"


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("cores", [1, 2, 4, 7, 16])
def test_with_equal_compute_each_task_has_as_many_workers(
    tasks: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, cores)
    config = config_of(TWO if tasks == 2 else THREE, num_envs=96, task_share="compute").resolved()
    groups, workers = groups_of(config)
    assert workers == tasks * max(1, cores // tasks)
    tasks_of_worker: dict[int, set[int]] = {}
    for group in range(groups):
        tasks_of_worker.setdefault(group % workers, set()).add(group % tasks)
    assert all(len(found) == 1 for found in tasks_of_worker.values()), "a worker steps one task"
    counted = [sum(found == {task} for found in tasks_of_worker.values()) for task in range(tasks)]
    assert counted == [workers // tasks] * tasks


def test_given_sizes_of_groups_are_kept_or_refused() -> None:
    assert groups_of(config_of(THREE, envs_per_group=4).resolved())[0] == 6
    with pytest.raises(ConfigError, match=r"8 groups of environments on each rank do not divide into 3 shares, .*=8\."):
        config_of(THREE, envs_per_group=3).resolved()
    with pytest.raises(ConfigError, match=r"6 groups of environments on each rank do not divide into 4 shares"):
        config_of(TWO, envs_per_group=4, population__policies="a,b").resolved()
    lockstep = config_of(THREE, num_envs=24, regime="lockstep", envs_per_group=4)
    with pytest.raises(ConfigError, match=r"3 groups of environments on each rank do not divide into 2 shares"):
        config_of(TWO, num_envs=24, regime="lockstep", envs_per_group=4).resolved(2)
    assert groups_of(lockstep.resolved(2))[0] == 6


@pytest.mark.parametrize("share", ["samples", "compute"])
@pytest.mark.parametrize("envs_per_group", ["auto", 4])
@pytest.mark.parametrize("policies", ["1", "a,b"])
@pytest.mark.parametrize("cores", [1, 3, 4, 16])
def test_automatic_numbers_of_workers_and_groups_fit_each_other(
    share: str, envs_per_group: Any, policies: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, cores)
    for tasks, every in ((TWO, 2), (THREE, 3)):
        every *= 1 + ("," in policies)
        each = every if envs_per_group == "auto" else 4 * every
        for num_envs in (each, 7 * each, 11 * each, 17 * each, 23 * each):
            config = config_of(
                tasks,
                num_envs=num_envs,
                envs_per_group=envs_per_group,
                task_share=share,
                population__policies=policies,
            )
            groups, workers = groups_of(config.resolved())
            assert workers <= groups, num_envs
            assert groups % every == 0
            if share == "compute":
                assert workers % len(config.env.tasks) == 0

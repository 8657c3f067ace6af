"""Settings without effect are refused where the user gave them, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmill.api import make_config
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.settings.new_config import check_effects
from rollmill.settings.options import apply, full_keys
from rollmill.settings.run_plan import plan_run
from rollmill.settings.value_checks import ConfigError

GAME = "envpool/ConnectFour-v1"


@pytest.mark.parametrize(
    ("preset", "idle", "message", "needed"),
    [
        (
            "gym/CartPole-v1",
            {"pbt.every": 100, "pbt.limits.learning_rate": "1e-5,1e-2"},
            r"pbt.every, pbt.limits.learning_rate: .* use population.pbt=True \(--pbt\)",
            {"population.pbt": True, "population.policies": 2},
        ),
        (
            "gym/CartPole-v1",
            {"task_share": "compute"},
            "task_share: without effect with a single task; name several",
            {"env.tasks": "gym/CartPole-v1,gym/Acrobot-v1"},
        ),
        (
            "gym/CartPole-v1",
            {"pbt": {"every": 100, "share": 0.3}},
            r"pbt.every: without effect where the policies are no population",
            {"population": {"pbt": True, "policies": 2}},
        ),
        (
            "gym/CartPole-v1",
            {"population.pbt": True, "population.policies": 2, "pbt.mutation_rate": 0.5, "pbt.explore": "pb2"},
            "pbt.mutation_rate: without effect with pbt.explore='pb2'",
            {"pbt.explore": "mutate"},
        ),
        (
            "gym/CartPole-v1",
            {"population.pbt": True, "population.policies": 2, "pbt.share": 0.2, "pbt.rule": "half"},
            "pbt.share: without effect with pbt.rule='half'",
            {"pbt.rule": "truncation"},
        ),
        (
            "gym/CartPole-v1",
            {"model.observe_task": True},
            "model.observe_task: without effect with a single task",
            {"env.tasks": "gym/CartPole-v1,gym/Acrobot-v1"},
        ),
        (
            "gym/CartPole-v1",
            {"population.rating": "openskill"},
            "population.rating: without effect with one policy that meets no other player",
            {"population.policies": 2},
        ),
        (
            GAME,
            {"population.guests": "a=random", "population.guest_share": 0.3, "policy.a.agents": "player_0"},
            "guest_share: without effect where all guests have agents of their own",
            {"population.guests": "a=random,b=random"},
        ),
        (
            "gym/CartPole-v1",
            {"population.matchmaking": "pfsp", "population.snapshot_every": 100},
            "population.matchmaking, population.snapshot_every: .* no past selves; .*population.snapshots",
            {"population.snapshots": 2},
        ),
        (
            "gym/CartPole-v1",
            {"population.past": 0.5},
            "population.past: without effect where there are no past selves; give places",
            {"population.snapshots": 2},
        ),
        (
            GAME,
            {"population.guest_share": 0.5},
            "guest_share: .* no guests; name",
            {"population.guests": "random"},
        ),
        (
            GAME,
            {"population.guests": "random", "population.snapshots": 2, "population.past": 1.0},
            "population.guests, population.past: .* population.past=1, .*without a past self; use a smaller",
            {"population.guest_share": 0.0},
        ),
        (
            GAME,
            {"population.guests": "random", "population.snapshots": 2, "population.past": 1.0},
            "population.guests, population.past: ",
            {"policy.random.agents": "player_1"},
        ),
        ("gym/CartPole-v1", {"learner.vtrace_rho": 2.0}, "vtrace_rho: .*'gae'; use", {"learner.advantage": "vtrace"}),
        ("gym/CartPole-v1", {"model.core_size": 8}, "core_size: .*no recurrent core; use", {"model.core": "gru"}),
        (
            "gym/CartPole-v1",
            {"policy.a.learner.advantage": "gae", "population.policies": "a,b", "learner.vtrace_rho": 2.0},
            "vtrace_rho: .*'gae'; use",
            {"policy.b.learner.advantage": "vtrace"},
        ),
        (
            "gym/CartPole-v1",
            {"tracking.project": "p", "tracking.wandb_entity": "me"},
            "tracking.project, tracking.wandb_entity: .* TensorBoard, which is the only tracker; name another",
            {"tracker": "tensorboard,wandb"},
        ),
        ("gym/CartPole-v1", {"groups_per_batch": 2}, "groups_per_batch: .*outside of lockstep", {"regime": "lockstep"}),
    ],
)
def test_a_setting_is_refused_until_another_one_gives_it_an_effect(
    preset: str, idle: dict[str, Any], message: str, needed: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(preset, idle)
    if "env.tasks" in needed:
        make_config(needed["env.tasks"], idle)
    else:
        make_config(preset, {**idle, **needed})


@pytest.mark.parametrize(
    ("algo", "idle", "message", "needed"),
    [
        ("dqn", {"epsilon_end": 0.2}, "epsilon_end: .*'ladder'", {"epsilon_kind": "schedule"}),
        ("dqn", {"ladder_alpha": 2.0}, "ladder_alpha: .*'schedule'", {"epsilon_kind": "ladder"}),
        (
            "dqn",
            {"epsilon_fraction": 0.2},
            "epsilon_fraction: .*beside",
            {"epsilon_steps": None},
        ),
        ("dqn", {"replay.beta_end": 0.5, "replay.weights": "global"}, "beta_end, replay.weights: .*'uniform'", {}),
        ("ddpg", {"ou_theta": 0.5}, "ou_theta: .*another noise", {"noise_kind": "ou"}),
        ("sac", {"target_entropy": -2.0}, "target_entropy: .*not learned", {"off_policy.temperature": "auto"}),
    ],
)
def test_settings_of_off_policy_algorithms_too(
    algo: str, idle: dict[str, Any], message: str, needed: dict[str, Any]
) -> None:
    preset = "gym/CartPole-v1" if algo == "dqn" else "gym/Pendulum-v1"
    other = {"schedule": "ladder", "ladder": "schedule", None: 100, "ou": "pink", "auto": 0.2}
    (key, value), *_ = [*needed.items(), ("replay.priorities", "proportional")]
    if needed:  # As a preset or an earlier choice may have it.
        config = make_config(preset, {key: other[value]}, algo=algo)
        with pytest.raises(ConfigError, match=message):
            check_effects(dict.fromkeys(full_keys(config, idle)), apply(config, idle))
    else:
        with pytest.raises(ConfigError, match=message):
            make_config(preset, idle, algo=algo)
    make_config(preset, {**idle, key: value}, algo=algo)


@pytest.mark.parametrize(
    ("key", "value", "idle", "read"),
    [
        ("head_sizes", "32", ("sac", "td3", "ddpg"), ("ppo", "dqn")),
        ("initial_log_std", -1.0, ("sac", "td3", "ddpg", "dqn"), ("ppo",)),
        ("state_dependent_std", True, ("sac", "td3", "ddpg", "dqn"), ("ppo",)),
        ("log_std_bounds", "-5,1", ("td3", "ddpg", "dqn"), ("ppo", "sac")),
    ],
)
def test_parts_that_a_network_does_not_have_are_refused(
    key: str, value: object, idle: tuple[str, ...], read: tuple[str, ...]
) -> None:
    for algo in (*idle, *read):
        preset = "gym/CartPole-v1" if algo == "dqn" else "gym/Pendulum-v1"
        if algo in read:
            make_config(preset, {f"model.{key}": value}, algo=algo)
        else:
            with pytest.raises(ConfigError, match=rf"model\.{key}: without effect with "):
                make_config(preset, {f"model.{key}": value}, algo=algo)


@pytest.mark.parametrize("given", [{"model.encoder": "mine"}, {"model.model": "mine"}])
def test_a_network_of_one_s_own_may_have_a_use_for_any_setting(given: dict[str, Any]) -> None:
    assert make_config("gym/CartPole-v1", {"model.core_size": 8, **given}).model.core_size == 8


def test_settings_of_the_other_estimator_and_of_clipping_are_refused_in_impala() -> None:
    for key in ("learner.gae_lambda", "learner.clip_range"):
        with pytest.raises(ConfigError, match=rf"{key}: without effect .*IMPALA's"):
            make_config("atari/pong", {key: 0.5}, algo="impala")
        assert make_config("atari/pong", {key: 0.5}, algo="ppo")
    clipped = {"learner.clip_kind": "reciprocal", "learner.clip_range": 0.5}
    assert make_config("atari/pong", clipped, algo="impala").on_policy.clip_range == 0.5


@pytest.mark.parametrize("key", ["eval_against", "eval_episodes", "eval_video"])
def test_settings_of_evaluations_need_evaluations_or_a_callback(key: str, tmp_path: Path) -> None:
    given: dict[str, object] = {key: "random" if key == "eval_against" else 5}

    def plan(**more: Any) -> Config:
        options: dict[str, Any] = {"resume": False, "algo": None, "protocol": None, "ranks": Ranks(), "trust": False}
        settings = {**given, **({"eval_every": 9} if more.pop("evaluates", False) else {})}
        return plan_run(GAME, settings, tmp_path / "run", **options, **more).settings

    with pytest.raises(ConfigError, match=rf"{key}: .* nothing is evaluated; .*eval_every"):
        plan()
    assert plan(has_callbacks=True).eval_every is None
    assert plan(evaluates=True).eval_every == 9


@pytest.mark.parametrize("preset", [GAME, "gym/CartPole-v1"])
def test_a_bank_with_one_place_is_refused(preset: str) -> None:
    with pytest.raises(ConfigError, match=r"population\.snapshots: .* kept free .* 0 or at least 2 places"):
        make_config(preset, {"population.snapshots": 1})
    for places in (0, 2):
        assert make_config(preset, {"population.snapshots": places}).population.snapshots == places


def test_a_preset_may_bring_settings_that_lose_their_effect() -> None:
    assert make_config(GAME, {"population.snapshots": 0}).population.matchmaking
    assert make_config(GAME, {"population.snapshots": 0, "population.past": 0}).population.past == 0


def test_who_turns_the_deciding_setting_off_may_keep_the_others() -> None:
    off = {"population.snapshots": 0, "population.matchmaking": "pfsp", "eval_every": None, "eval_against": "random"}
    assert make_config(GAME, {**off, "population.pbt": False, "pbt.every": 100}).pbt.every == 100
    uniform = {"replay.alpha": 0.5, "replay.priorities": "uniform"}
    assert make_config("gym/CartPole-v1", uniform, algo="dqn").replay.alpha == 0.5


@pytest.mark.parametrize(
    ("preset", "key"),
    [
        ("envpool/Pong-v5", "env.atari.sticky_actions"),
        ("gym/CartPole-v1", "env.vizdoom.width"),
        ("gym/CartPole-v1", "env.dmlab.width"),
    ],
)
def test_options_of_another_family_are_refused(preset: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: without effect for environments that are not .*env\.kwargs\.NAME"):
        make_config(preset, {key: 0.25 if "sticky" in key else 1})

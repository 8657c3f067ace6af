"""Presets of several tasks, made of those of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollmill
from rollmill.envs.config import DmlabOptions, EnvConfig, VizdoomOptions
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.registry import register_env
from rollmill.envs.suites import tasks_of
from rollmill.settings.presets import families, resolve
from rollmill.settings.presets.preset import Preset
from rollmill.settings.presets.tasks import fitted, name_for_settings, preset_of_tasks
from rollmill.settings.value_checks import ConfigError


def preset(name: str, overrides: families.Overrides = families.GENERIC, **env: object) -> Preset:
    return Preset(name=name, env=EnvConfig(name=name, **env), overrides=overrides)  # type: ignore[arg-type]  # values of any field


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})


def test_a_suite_resolves_to_a_preset_of_its_tasks() -> None:
    found = resolve("suite/atari10")
    assert found.name == found.env.name == "suite/atari10"
    assert found.env.tasks == tasks_of("suite/atari10")
    listed = resolve("gym/CartPole-v1, Acrobot-v1")
    assert listed.env.name == "gym/CartPole-v1, Acrobot-v1"
    # Each has its full name.
    assert listed.env.tasks == ("gym/CartPole-v1", "gym/Acrobot-v1")


def test_an_unknown_task_of_a_list_is_refused() -> None:
    with pytest.raises(UnknownEnvironment, match="CartPol-v1"):
        resolve("gym/Acrobot-v1,gym/CartPol-v1")


def test_one_environment_by_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.tasks names 'gym/CartPole-v1' twice"):
        resolve("gym/CartPole-v1,CartPole-v1")


def test_a_registered_environment_may_have_a_name_with_a_comma() -> None:
    register_env("own,one", lambda: None)
    assert resolve("own,one").env.tasks == ()


def test_settings_on_which_tasks_agree_are_kept() -> None:
    same = {**families.ATARI, "learner.discount": 0.9}
    found = preset_of_tasks("both", [preset("own/a", same), preset("gym/b", same)])
    assert found.overrides["learner.discount"] == 0.9
    assert found.overrides["model.centre_pixels"] == "each"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("minigrid/MiniGrid-Empty-5x5-v0", "minigrid/MiniGrid-MemoryS7-v0"), families.MINIGRID_MEMORY),
        (("vizdoom/basic", "vizdoom/defend_the_line"), families.VIZDOOM),
        (("atari/pong", "atari/breakout"), families.ATARI),
        (("gym/CartPole-v1", "gym/Acrobot-v1"), families.GENERIC),
        (("gym/Acrobot-v1", "gym/MountainCar-v0"), families.GENERIC),
        (("atari/pong", "minigrid/MiniGrid-Empty-5x5-v0"), families.GENERIC),
        (("gym/CartPole-v1", "gym/CartPole-v0"), families.CARTPOLE),
    ],
)
def test_settings_on_which_tasks_differ_are_those_of_their_family(
    names: tuple[str, ...], expected: families.Overrides
) -> None:
    found = resolve(",".join(names))
    own = {
        *("num_envs", "total_steps", "learner.batch_size", "learner.minibatches", "learner.reward_clip"),
        *("learner.reward_scale", "model.normalise_returns", "model.observe_task", "model.centre_pixels"),
    }
    kept = expected.keys() - own
    assert {key: found.overrides[key] for key in kept} == {key: expected[key] for key in kept}
    assert found.overrides.keys() <= expected.keys() | own


def test_atari_differs_only_where_all_of_its_games_need_it() -> None:
    different = [
        preset("atari/pong", {**families.ATARI, "learner.discount": 0.5}),
        preset("atari/qbert", families.ATARI),
    ]
    assert preset_of_tasks("both", different).overrides["learner.discount"] == families.ATARI["learner.discount"]


@pytest.mark.parametrize("name", ["suite/atari10", "suite/vizdoom", "suite/minigrid", "gym/CartPole-v1,gym/Acrobot-v1"])
def test_returns_of_tasks_are_brought_to_one_scale_without_clipping_rewards(name: str) -> None:
    overrides = resolve(name).overrides
    assert overrides["learner.reward_clip"] is None
    assert overrides["learner.reward_scale"] == 1.0
    assert overrides["model.normalise_returns"] == "popart"


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("suite/atari10", False),
        ("suite/vizdoom", False),
        ("atari/pong,vizdoom/basic", False),
        ("suite/minigrid", True),
        ("atari/pong,gym/CartPole-v1", True),
        ("gym/CartPole-v1,gym/Acrobot-v1", True),
    ],
)
def test_a_network_is_told_the_task_where_it_does_not_see_it(name: str, is_told: bool) -> None:
    assert resolve(name).overrides["model.observe_task"] is is_told


def test_the_environments_of_a_family_show_the_same_in_all_tasks() -> None:
    assert resolve("atari/pong,atari/breakout").env.atari.full_action_space
    assert not resolve("atari/pong").env.atari.full_action_space
    assert resolve("gym/CartPole-v1,atari/pong").env.atari.full_action_space
    assert not resolve("gym/CartPole-v1,gym/Acrobot-v1").env.atari.full_action_space
    assert resolve("vizdoom/basic,vizdoom/take_cover").env.vizdoom.measurements
    levels = [
        preset(f"dmlab/{level}", dmlab=DmlabOptions(extended_actions=True, width=64))
        for level in ("explore", "lasertag")
    ]
    dmlab = preset_of_tasks("levels", levels).env.dmlab
    assert (dmlab.instructions, dmlab.extended_actions, dmlab.width) == (True, True, 64)
    vizdoom = preset_of_tasks("doom", [preset("vizdoom/x", vizdoom=VizdoomOptions(measurements=True))]).env.vizdoom
    assert vizdoom.measurements


def test_an_engine_that_ended_is_built_again_where_a_task_asks_for_it() -> None:
    assert resolve("vizdoom/deathmatch_bots,vizdoom/duel_bots").env.on_failure == "restart"
    assert resolve("vizdoom/basic,vizdoom/take_cover").env.on_failure == "stop"


def test_tasks_of_several_agents_are_refused() -> None:
    games = [preset("envpool/a", families.GAMES), preset("envpool/b", families.GAMES)]
    with pytest.raises(ConfigError, match=r"both: envpool/a has several agents; .* Train it in a run of its own\."):
        preset_of_tasks("both", games)


@pytest.mark.parametrize(
    "name", ["suite/atari10", "suite/atari57", "suite/minigrid", "suite/vizdoom", "gym/CartPole-v1,gym/Acrobot-v1"]
)
@pytest.mark.parametrize("regime", ["async", "lockstep"])
def test_a_preset_of_tasks_makes_a_run(name: str, regime: str) -> None:
    config = rollmill.make_config(name, {} if regime == "async" else {"regime": regime})
    assert len(config.env.tasks) == len(tasks_of(name))
    config.resolved()


def test_a_run_is_as_long_for_each_task_as_one_of_its_own() -> None:
    alone = families.GENERIC["total_steps"]
    assert isinstance(alone, int)
    assert resolve("gym/Acrobot-v1,gym/MountainCar-v0").overrides["total_steps"] == 2 * alone
    assert "total_steps" not in fitted(
        {"num_envs": 8, "rollout_length": 4, "learner.batch_size": 32}, {"learner.minibatches": 1}, 2
    )


def test_the_sizes_of_known_suites() -> None:
    # Eight trajectories of 32 steps and 16 environments for each of ten games, in the eight minibatches of one game.
    found = resolve("suite/atari10").overrides
    sizes = [found[key] for key in ("num_envs", "learner.batch_size", "learner.minibatches")]
    assert sizes == [160, 2560, 8]
    found = resolve("suite/atari57").overrides
    sizes = [found[key] for key in ("num_envs", "learner.batch_size", "learner.minibatches")]
    assert sizes == [4 * 57, 57 * 64, 8]


SIZES = st.fixed_dictionaries(
    {
        "num_envs": st.integers(1, 300),
        "rollout_length": st.sampled_from([1, 8, 32]),
        "learner.minibatches": st.integers(1, 16),
    }
)


@given(SIZES, st.integers(1, 200), st.integers(2, 60))
def test_sizes_fit_any_number_of_tasks(sizes: dict[str, int], trajectories: int, tasks: int) -> None:
    steps, batch_size = sizes["rollout_length"], sizes["rollout_length"] * trajectories
    present = {**sizes, "learner.batch_size": batch_size, "total_steps": 1000}
    found = fitted(present, {}, tasks)
    rows, rest = divmod(int(str(found["learner.batch_size"])), steps * tasks)
    assert rest == 0, "a batch has whole trajectories of each task, as many of each"
    assert rows <= 4 or rows % 4 == 0, "the batch can be divided into many sizes of minibatches"
    assert rows >= 1
    envs, rest = divmod(int(str(found["num_envs"])), tasks)
    assert rest == 0, "each task has as many environments"
    assert envs >= 4
    assert envs % rows == 0, "a batch is made of whole slots, or one of them of whole batches"
    minibatches = int(str(found["learner.minibatches"]))
    assert rows * tasks * steps % minibatches == 0, "minibatches have equal sizes"
    recurrent = fitted({**present, "model.core": "gru"}, {}, tasks)
    assert rows * tasks % int(str(recurrent["learner.minibatches"])) == 0, "whole trajectories in each minibatch"
    assert found["total_steps"] == 1000 * tasks
    # No smaller than they were, and no larger than whole trajectories and environments of each task ask for.
    assert rows * tasks * steps >= present["learner.batch_size"]
    assert rows < max(-(-trajectories // tasks), 8) + 4
    assert rows >= min(8, 128 // tasks)
    assert envs * tasks >= present["num_envs"]
    assert envs >= min(16, 256 // tasks)
    assert envs < max(16, -(-present["num_envs"] // tasks)) + rows
    assert minibatches <= present["learner.minibatches"]
    # Nothing else changes, and sizes that are not given are those that are there already.
    assert {key for key in found if found[key] != present[key]} <= {*present} - {"rollout_length"}
    assert fitted({}, present, tasks) == {key: found[key] for key in found.keys() - {"rollout_length", "total_steps"}}


def test_a_replay_only_needs_as_many_environments_of_each_task() -> None:
    replay = {"regime": "replay", "num_envs": 10, "learner.batch_size": 256, "total_steps": 100}
    assert fitted(replay, {}, 3) == {**replay, "num_envs": 12, "total_steps": 300}
    assert fitted({**replay, "num_envs": 30}, {}, 3)["num_envs"] == 30
    assert fitted({**replay, "num_envs": 31}, {}, 3)["num_envs"] == 33


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_other_algorithms_have_sizes_for_tasks_too(algo: str) -> None:
    tasks = (
        ("gym/CartPole-v1", "gym/Acrobot-v1") if algo == "dqn" else ("gym/Pendulum-v1", "gym/MountainCarContinuous-v0")
    )
    config = rollmill.make_config(",".join(tasks), algo=algo)
    assert config.in_replay
    assert config.num_envs % 2 == 0
    assert config.total_steps == 2 * rollmill.make_config(tasks[1], algo=algo).total_steps
    config.resolved()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gym/CartPole-v1", "gym/CartPole-v1"),
        ("CartPole-v1", "gym/CartPole-v1"),
        ("gym/CartPole-v1,gym/Acrobot-v1", "gym/tasks"),
        ("suite/atari10", "atari/tasks"),
        ("suite/metaworld", "envpool/MetaWorld/"),
        ("gym/CartPole-v1,atari/pong", "tasks"),
    ],
)
def test_the_name_by_which_settings_of_an_algorithm_are_found(name: str, expected: str) -> None:
    found = name_for_settings(resolve(name))
    assert found == expected if not expected.endswith("/") else found.startswith(expected)

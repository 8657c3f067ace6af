"""Built-in suites, and files of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.api import make_config
from rollmill.campaigns.jobs import CampaignError
from rollmill.campaigns.suite_file import Method, find_suite, flat, suite_names


def test_the_built_in_suites_have_environments_that_can_be_configured() -> None:
    assert {"atari57", "atari10", "mujoco", "minigrid", "vizdoom", "classic", "cleanba-wrappers"} <= {*suite_names()}
    assert len(find_suite("atari57").environments) == 57
    assert find_suite("suite/atari10") == find_suite("atari10")
    for name in ("mujoco", "classic"):
        for env in find_suite(name).environments:
            assert make_config(env).env.name == env


def test_the_wrapper_ablation_differs_in_how_games_are_presented_alone() -> None:
    suite = find_suite("cleanba-wrappers")
    shown = {}
    for method in suite.methods:
        settings = {**suite.settings, **method.settings}
        config = make_config("atari/pong", settings, algo=method.algo, protocol=method.protocol)
        assert (config.model.encoder, config.total_steps) == ("impala", 50_000_000)
        shown[method.name] = config.env.atari
    assert shown["envpool"].sticky_actions == shown["gym"].sticky_actions == 0.25
    assert (shown["envpool"].fire_reset, shown["envpool"].noop_max) == (True, 1)
    assert (shown["gym"].fire_reset, shown["gym"].noop_max) == (False, 30)
    assert (shown["impala"].sticky_actions, shown["impala"].life_loss) == (0.0, True)
    assert not shown["impala"].full_action_space
    assert shown["envpool"].full_action_space


def test_a_file_has_environments_settings_and_methods(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("""
        environments = ["gym/CartPole-v1", "gym/Acrobot-v1"]
        algo = "ppo"
        seeds = 2
        [settings]
        total_steps = 100_000
        learner.epochs = 2
        [settings_of."gym/Acrobot-v1"]
        total_steps = 200_000
        [methods.small]
        model.mlp_sizes = [32, 32]
        [methods.impala]
        algo = "impala"
    """)
    suite = find_suite(str(file))
    assert (suite.name, suite.seeds) == ("mine", 2)
    assert suite.environments == ("gym/CartPole-v1", "gym/Acrobot-v1")
    assert suite.settings == {"total_steps": 100_000, "learner.epochs": 2}
    assert suite.settings_of == {"gym/Acrobot-v1": {"total_steps": 200_000}}
    assert suite.methods == (
        Method("small", "ppo", None, {"model.mlp_sizes": [32, 32]}),
        Method("impala", "impala", None, {}),
    )


def test_a_file_without_methods_has_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('environments = ["gym/CartPole-v1"]\nprotocol = "machado"\n')
    assert find_suite(str(tmp_path / "mine.toml")).methods == (Method("", None, "machado"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("games = []", "has 'games': a suite has environments, algo"),
        ("seeds = 2", "environments = None: give a list of names"),
        ('environments = ["a", "a"]', "each once"),
        ('environments = ["a"]\nseeds = 0', "seeds=0: give an integer of at least 1"),
        ('environments = ["a"]\nalgo = 3', "algo = 3: give a name"),
        ('environments = ["a"]\nsettings = 3', r"settings = 3: give a table \[settings\]"),
        ('environments = ["a"]\n[methods]\nppo = 3', r"give a table \[methods\]"),
        ('environments = ["a"]\n[methods."x=y"]', "method 'x=y'"),
        ('environments = ["a"]\n[settings_of.b]\nseed = 1', "settings_of 'b', which is not one of its environments"),
        ("environments: a", "is not a TOML file"),
    ],
)
def test_errors_of_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(CampaignError, match=message):
        find_suite(str(tmp_path / "mine.toml"))


def test_errors_of_names(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="no suite 'atari5'; did you mean atari57"):
        find_suite("atari5")
    with pytest.raises(CampaignError, match="or give a file that ends in"):
        find_suite("nonsense")
    with pytest.raises(CampaignError, match="cannot be read"):
        find_suite(str(tmp_path / "none.toml"))


def test_nested_tables_are_dotted_keys() -> None:
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_text_of_an_argument_stays_text() -> None:
    settings = flat({"env": {"kwargs": {"level": "1", "size": 2}}})
    assert make_config("gym/CartPole-v1", settings).env.kwargs == {"level": "1", "size": 2}


def test_an_argument_of_an_environment_may_be_a_table() -> None:
    tables = {"env": {"kwargs": {"config": {"traffic": 0.1}, "options": {}, "gravity": 9.8}}}
    expected = {"env.kwargs.config": {"traffic": 0.1}, "env.kwargs.options": {}, "env.kwargs.gravity": 9.8}
    assert flat(tables) == expected
    of_policy = {"policy": {"slow": {"learner": {"learning_rate": 1e-4}}}}
    assert flat(of_policy) == {"policy.slow.learner.learning_rate": 1e-4}
    assert flat({"env.kwargs.config": {"traffic": 0.1}}) == {"env.kwargs.config": {"traffic": 0.1}}

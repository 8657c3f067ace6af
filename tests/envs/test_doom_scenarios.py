"""Battles and matches against bots, in the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollmill
from rollmill.envs.config import EnvConfig, VizdoomOptions
from rollmill.envs.doom_scenarios import SCENARIOS, has_assets, scenario
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import make_env, resolve_maker
from rollmill.envs.vizdoom import scenarios
from rollmill.settings.presets import families

vizdoom = pytest.importorskip("vizdoom")
CIG = f"{vizdoom.scenarios_path}/cig.wad"


def make(name: str, kwargs: Any = (), **options: Any) -> Any:
    options_of_env = VizdoomOptions(measurements=True, **options)
    return make_env(EnvConfig(name=f"vizdoom/{name}", kwargs=dict(kwargs), vizdoom=options_of_env))


ALONE = [name for name, found in SCENARIOS.items() if found.players == 1 and (found.bots or has_assets())]


@pytest.mark.parametrize("name", ALONE)
def test_a_scenario_plays_and_its_terms_have_weights(name: str) -> None:
    assert name in scenarios()
    env = make(name)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    ends, paid, terms = 0, 0.0, dict.fromkeys(("health_loss", "ammo_loss"), 0.0)
    for _ in range(700):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        paid += reward
        assert env.observation_space.contains(observation)
        assert np.isfinite(observation["measurements"]).all()
        for term in terms:
            terms[term] += info["reward_terms"][term]
        if terminated or truncated:
            assert info["true_objective"] == paid
            assert set(info["metrics"]) == {"frags", "deaths", "kills"}
            paid, ends = 0.0, ends + 1
            env.reset()
    env.close()
    assert min(terms.values()) > 0
    is_match = SCENARIOS[name].bots > 0
    assert ends > 0 or is_match
    weights = (families.VIZDOOM_MATCH if is_match else families.VIZDOOM_BATTLE)["learner.reward_weights"]
    assert isinstance(weights, dict)
    assert set(weights) <= set(info["reward_terms"])


def test_the_heads_are_those_of_the_paper() -> None:
    if has_assets():
        battle = make("battle")
        assert sorted(battle.action_space.nvec.tolist()) == [2, 2, 3, 3, 11]
        assert resolve_maker(EnvConfig(name="vizdoom/battle")).frameskip == 4
        battle.close()
    duel = make("duel_bots")
    assert sorted(duel.action_space.nvec.tolist()) == [2, 2, 2, 3, 3, 8, 21]
    turns = next(head for head in duel.button_heads if len(head) == 21)
    angles = [next(iter(choice.values())) for choice in turns]
    np.testing.assert_allclose(np.diff(angles), 1.25)
    assert resolve_maker(EnvConfig(name="vizdoom/duel_bots")).frameskip == 2
    duel.close()


@pytest.mark.parametrize("content", [b"", b"PWAD", b"PWAD" + b"\xff" * 200, b"PWAD" + b"\x7f" * 200])
def test_a_damaged_map_is_refused_before_the_engine_crashes_on_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "map.wad").write_bytes(content)
    with pytest.raises(UnknownEnvironment, match=r"map\.wad is no WAD"):
        scenario("duel", packaged="nowhere", wad=str(tmp_path / "map.wad"))
    (tmp_path / "map.pk3").write_bytes(b"PK")
    assert scenario("duel", packaged="nowhere", wad=str(tmp_path / "map.pk3")).wad.endswith(".pk3")


def test_bots_come_back_in_every_match() -> None:
    env = make("deathmatch_bots", {"settings": {"episode_timeout": 40}}, bots=2)
    for _ in range(3):
        env.reset(seed=None)
        for _ in range(20):  # Two tics each; the episode begins behind the first ones.
            observation, _, terminated, truncated, _ = env.step(np.zeros(6, np.int64))
            if terminated or truncated:
                break
        assert observation["measurements"][6] == pytest.approx(3 / 5)
        assert truncated
        assert not terminated
    env.close()


def test_two_matches_at_once() -> None:
    envs = [make("duel_bots") for _ in range(2)]
    for env in envs:
        env.reset(seed=1)
    for _ in range(20):
        for env in envs:
            env.step(env.action_space.sample())
    for env in envs:
        env.close()


def test_maps_of_one_s_own() -> None:
    found = scenario("duel_bots", packaged="nowhere", wad=f"{CIG}:map02")
    assert (found.wad, found.map, found.bots) == (CIG, "map02", 1)
    env = make("duel_bots", wad=CIG)
    env.reset(seed=0)
    env.step(np.zeros(7, np.int64))
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "duel_bots",
            {"wad": "/no/such.wad"},
            UnknownEnvironment,
            r"wad='/no/such\.wad': there is no such file",
        ),
        ("duel", {"wad": __file__}, UnknownEnvironment, r"test_doom_scenarios\.py is no WAD"),
        ("duel", {"wad": f"{CIG}:MAP77"}, UnknownEnvironment, r"cig\.wad has no map MAP77; it has MAP01, .*PATH:MAP"),
        ("basic", {"bots": 3}, UnknownEnvironment, r"vizdoom/basic is no match: leave out env\.vizdoom\.wad"),
        ("battle", {"wad": CIG}, UnknownEnvironment, "vizdoom/battle has its own map"),
        ("battle", {"bots": 1}, UnknownEnvironment, "vizdoom/battle has no bots"),
        ("duel_bots", {"players": 2}, UnknownEnvironment, "vizdoom/duel_bots has one player"),
        ("duel", {"players": 9}, UnknownEnvironment, r"env\.vizdoom\.players=9: give 2 to 8"),
        ("duel_bots", {"bots": 8}, UnknownEnvironment, r"env\.vizdoom\.bots=8: give at most 7"),
        ("batle", {}, UnknownEnvironment, "there is no VizDoom scenario 'batle'; did you mean 'battle'"),
    ],
)
def test_what_is_not_there_is_explained(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(name, **options)


def test_maps_of_other_packages_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"the map of vizdoom/battle is in the package envpool-assets: .*envpool"):
        make("battle")
    with pytest.raises(MissingExtra, match=r"dwango5\.wad comes with the package sample-factory"):
        make("deathmatch_bots", wad="paper")


@pytest.mark.slow
@pytest.mark.skipif(not has_assets(), reason="needs envpool-assets")
def test_battle_trains_with_its_preset(tmp_path: Path) -> None:
    small = {"num_envs": 4, "rollout_length": 16, "learner.batch_size": 64, "learner.minibatches": 2}
    run = rollmill.train("vizdoom/battle", run_dir=tmp_path / "run", total_steps=256, quiet=True, **small)
    assert run.agent_steps >= 256
    assert rollmill.make_config("vizdoom/battle", {}).reward_terms == (
        *("ammo_gain", "ammo_loss", "health_gain", "health_loss"),
    )

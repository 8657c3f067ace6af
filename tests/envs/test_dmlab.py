"""The family ``dmlab`` with a stand-in for DeepMind Lab, which no index has: names, options, groups and a run."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

import rollmill
from rollmill.cli import main
from rollmill.envs import dmlab
from rollmill.envs.config import DmlabOptions, EnvConfig
from rollmill.envs.dmlab_cache import InvalidLevelCache
from rollmill.envs.errors import EnvironmentFailure, InvalidReward, MissingExtra, UnknownEnvironment
from rollmill.envs.factory import make_env, make_group, probe
from rollmill.reporting.metrics import read_metrics
from rollmill.scores import DMLAB_30, scores_of
from rollmill.settings.presets import families, list_presets, missing_families, resolve

SMALL = DmlabOptions(width=40, height=40)
WATERMAZE = "dmlab/rooms_watermaze"


def test_ids_are_the_levels_of_dmlab_30_in_both_versions(lab):
    ids = dmlab.ids()
    assert ids == sorted(ids)
    assert len(ids) == 32
    assert {f"dmlab/{id}" for id in ids} >= set(DMLAB_30)
    assert {id for id in ids if id.endswith("_test")} == {
        "rooms_collect_good_objects_test",
        "rooms_exploit_deferred_effects_test",
    }
    assert all(scores_of(f"dmlab/{id}") for id in ids)


@pytest.mark.parametrize(
    ("level", "path"),
    [
        ("rooms_watermaze", "contributed/dmlab30/rooms_watermaze"),
        ("contributed/dmlab30/rooms_watermaze", "contributed/dmlab30/rooms_watermaze"),
        ("contributed/psychlab/harlow", "contributed/psychlab/harlow"),
        ("demos/random_maze", "demos/random_maze"),
    ],
)
def test_a_level_has_a_short_name_or_a_path(lab, level, path):
    make_env(EnvConfig(name=f"dmlab/{level}")).close()
    assert lab.made[-1].level == path


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("room_watermaze", "no level 'room_watermaze'; did you mean 'rooms_watermaze'"),
        ("contributed/dmlab30/rooms_watermaz", "'contributed/dmlab30/rooms_watermaz'; did you mean 'rooms_watermaze'"),
        ("contributed/dmlab30/../../x", "has no level"),
        ("../x", "has no level"),
        ("/tmp/x", "has no level"),
        ("a//b", "has no level"),
        ("a/b\n", "has no level"),
        ("", r"has no level ''.*`rollmill envs dmlab`.*'demos/random_maze'"),
    ],
)
def test_an_unknown_level_suggests_similar_ones(lab, level, message):
    with pytest.raises(UnknownEnvironment, match=message):
        dmlab.maker(EnvConfig(name=f"dmlab/{level}"))
    assert lab.made == []


def test_a_path_that_the_engine_does_not_know_shows_its_message(lab):
    with pytest.raises(EnvironmentFailure) as raised:
        probe(EnvConfig(name="dmlab/demos/missing"))
    assert "Invalid levelName flag 'demos/missing'" in str(raised.value.__cause__)


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    message = rf"DeepMind Lab is not installed \(.*\): .*no package index.*Bazel \({re.escape(dmlab.BUILD_GUIDE)}\)"
    for call in (dmlab.ids, lambda: probe(EnvConfig(name=WATERMAZE)), lambda: resolve(WATERMAZE)):
        with pytest.raises(MissingExtra, match=message):
            call()
    assert re.match(message, missing_families()["dmlab"])
    assert not any(name.startswith("dmlab/") for name in list_presets())


def test_options_reach_the_environment(lab, tmp_path):
    options = DmlabOptions(
        width=40,
        height=30,
        renderer="hardware",
        extended_actions=True,
        level_cache=str(tmp_path),
        level_seeds=1,
        dataset_path="/pictures",
    )
    made = dmlab.maker(EnvConfig(name="dmlab/explore_object_rewards_few", dmlab=options, frameskip=2))
    assert (made.frameskip, made.max_episode_steps, made.vector) == (2, None, None)
    env = made.env()
    assert env.observation_space.shape == (30, 40, 3)
    assert env.action_space.n == 15
    env.reset()
    env.step(0)
    engine = lab.made[-1]
    assert (engine.renderer, engine.config["datasetPath"], engine.seeds) == ("hardware", "/pictures", [0])
    assert engine.calls == [((0, 0, 0, 1, 0, 0, 0), 2)]
    assert engine.cache.size().maps == 1
    limited = dmlab.maker(EnvConfig(name=WATERMAZE, max_episode_steps=9, kwargs={"settings": {"mixerSeed": 3}}))
    assert (limited.frameskip, limited.max_episode_steps, limited.time_limit) == (4, 9, 9)
    limited.env()
    assert lab.made[-1].config["mixerSeed"] == "3"
    clips = make_env(EnvConfig(name=WATERMAZE, dmlab=DmlabOptions(reward_clip=True)))
    clips.reset(seed=0)
    assert clips.step(0)[1] < 4.0


@pytest.mark.parametrize(
    ("level", "instructions", "expected"),
    [
        ("rooms_watermaze", "auto", False),
        ("language_select_located_object", "auto", True),
        ("contributed/dmlab30/language_select_located_object", "auto", True),
        ("rooms_watermaze", True, True),
        ("language_select_located_object", False, False),
    ],
)
def test_which_levels_give_their_instruction(lab, level, instructions, expected):
    spec = probe(EnvConfig(name=f"dmlab/{level}", dmlab=DmlabOptions(instructions=instructions)))
    assert {name: item.shape for name, item in spec.observation.items()} == {
        "obs": (72, 96, 3),
        **({"instructions": (1000,)} if expected else {}),
    }
    assert spec.observation["obs"].is_image


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, r"env.dmlab.width=0: give an integer of at least 1 \(pixels\)"),
        ({"renderer": "gpu"}, "env.dmlab.renderer='gpu': choose one of 'software', 'hardware'"),
        ({"instructions": "no"}, "env.dmlab.instructions='no': choose one of 'auto', True, False"),
        ({"extended_actions": 1}, "env.dmlab.extended_actions=1: choose one of True, False"),
        ({"level_seeds": 0}, "env.dmlab.level_seeds=0: give an integer of at least 1, or None for as many"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        DmlabOptions(**options)


def test_a_folder_that_cannot_be_used_is_named(lab):
    with pytest.raises(InvalidLevelCache, match=r"env\.dmlab\.level_cache='/dev/null' cannot be used"):
        probe(EnvConfig(name=WATERMAZE, dmlab=DmlabOptions(level_cache="/dev/null")))


def test_seeds_decide_in_a_group(lab, harness):
    config = EnvConfig(name="dmlab/language_answer_quantitative_question", dmlab=SMALL)
    spec = probe(config)

    def play(seeds):
        group = make_group(config, 2, seeds)
        data = harness.run(group, spec.observation, spec.action, 14)
        group.close()
        return data

    one, same, other = play([1, 2]), play([1, 2]), play([3, 4])
    for name in spec.observation:
        np.testing.assert_array_equal(one.observation[name], same.observation[name])
    assert (one.observation["obs"] != other.observation["obs"]).any()
    # Episodes of 42 frames end in their eleventh step, and the next step is masked.
    np.testing.assert_array_equal(np.argwhere(one.terminated), [[10, 0], [10, 1]])
    assert not one.truncated.any()
    np.testing.assert_array_equal(np.argwhere(~one.valid), [[11, 0], [11, 1]])


def test_the_preset_has_the_papers_hyperparameters(lab):
    preset = resolve(WATERMAZE)
    assert preset.overrides == families.DMLAB
    assert preset.env == EnvConfig(name=WATERMAZE, dmlab=DmlabOptions(extended_actions=True))
    assert resolve("dmlab/contributed/psychlab/harlow").overrides == families.DMLAB
    assert [name for name in list_presets() if name.startswith("dmlab/")] == [f"dmlab/{id}" for id in dmlab.ids()]


def test_the_command_lists_the_levels(lab, capsys):
    assert main(["envs", "dmlab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dmlab (32)"
    assert f"  {WATERMAZE}" in lines


SETTINGS = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "total_steps": 64 * 4,
    "model.core_size": 16,
    "model.dense_size": 16,
    "env.dmlab.width": 40,
    "env.dmlab.height": 40,
    "regime": "lockstep",
}


@pytest.mark.slow
def test_a_run_learns_from_pictures_and_instructions_and_reports_raw_scores(lab, tmp_path):
    run = rollmill.train(
        "dmlab/language_select_located_object",
        run_dir=tmp_path / "run",
        quiet=True,
        **{**SETTINGS, "num_envs": 8, "env.kwargs.settings": {"episodeLengthFrames": 12, "pays": 10}},
    )
    assert run.agent_steps >= 256
    # Three steps of 40 each, of which clipping leaves less than 15 to the learner.
    assert run.episode_return == 120.0
    observation, _ = make_env(EnvConfig(name="dmlab/language_select_located_object", dmlab=SMALL)).reset(seed=0)
    assert set(observation) == {"obs", "instructions"}


@pytest.mark.slow
def test_processes_of_a_run_share_a_cache(lab, tmp_path):
    run = rollmill.train(
        "dmlab/explore_goal_locations_small",
        run_dir=tmp_path / "run",
        quiet=True,
        **{
            **SETTINGS,
            "num_envs": 8,
            "rollout.num_workers": 2,
            "env.dmlab.level_cache": str(tmp_path / "cache"),
            "env.dmlab.level_seeds": 3,
            "env.kwargs.settings": {"episodeLengthFrames": 12},
        },
    )
    maps = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert maps == [f"explore_goal_locations_small_{seed}" for seed in range(3)]
    generated = [
        row["env/generated_maps"] for row in read_metrics(run.dir) if row.get("env/generated_maps") is not None
    ]
    assert 0.0 <= generated[-1] < 1.0


def test_a_weight_for_a_term_that_there_is_not_is_refused(lab, harness):
    spec = probe(EnvConfig(name=WATERMAZE, dmlab=SMALL))
    group = make_group(EnvConfig(name=WATERMAZE, dmlab=SMALL), 1, [0], reward_terms=["clip", "other"])
    into = harness.observation_view(spec.observation, 1)
    group.reset(into)
    outcome = harness.outcome_view(1)._replace(reward_terms=np.zeros((1, 2), np.float32))
    with pytest.raises(InvalidReward, match=r"gives no reward term 'other'.*it gives 'clip'"):
        group.step(np.zeros((1, 1), np.int32), None, into, outcome)
    group.close()

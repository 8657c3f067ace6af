"""What "auto" stands for, where it changes what is learned, is settled once and recorded."""

import json
from pathlib import Path

import pytest

import rollmill
from rollmill.api import make_config
from rollmill.regimes.settling import SMALL_NETWORK, settled_settings
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec

VECTOR = ArraySpec(shape=(4,), dtype="float32")
PICTURE = ArraySpec(shape=(84, 84, 3), dtype="uint8", low=0, high=255)
CHOICE = ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete")
# Settings that the generic preset leaves to the environment, in addition to the precisions.
OF_ANY = {"learner.entropy_coef": 0.01, "model.scale_actions": False}
OF_VECTORS = {**OF_ANY, "learner.epochs": 8, "model.shared": False}
OF_PICTURES = {**OF_ANY, "learner.epochs": 4, "model.shared": True}


def spec_of(observation: ArraySpec, action: ActionSpec = CHOICE) -> EnvSpec:
    return EnvSpec(name="test", observation={"obs": observation}, action=action)


def never() -> str:
    raise AssertionError("must not be measured")


def test_small_networks_compute_in_fp32_without_a_measurement() -> None:
    settled = settled_settings(make_config("gym/Acrobot-v1"), spec_of(VECTOR), 10_000, never)
    assert settled == OF_VECTORS | {"learner.precision": "fp32", "inference.precision": "fp32"}


def test_pictures_and_large_networks_are_measured_in_async() -> None:
    config = make_config("gym/Acrobot-v1", {"learner.device": "cpu", "inference.device": "cpu"})
    for spec, size, expected in (
        (spec_of(PICTURE), 10_000, OF_PICTURES),
        (spec_of(VECTOR), SMALL_NETWORK + 1, OF_VECTORS),
    ):
        settled = settled_settings(config, spec, size, lambda: "bf16")
        assert settled == expected | {"inference.precision": "bf16"}


@pytest.mark.parametrize("overrides", [{"regime": "lockstep"}, {"regime": "replay", "off_policy.algorithm": "dqn"}])
def test_lockstep_and_replay_follow_a_rule(overrides: dict[str, object]) -> None:
    settled = settled_settings(make_config("gym/Acrobot-v1", overrides), spec_of(PICTURE), 10_000, never)
    assert settled["learner.precision"] == settled["inference.precision"]


def test_a_replay_keeps_fewer_images() -> None:
    config = make_config("gym/Pendulum-v1", {"replay.capacity": "auto"}, algo="sac")
    assert config.replay.most_steps == 1_000_000
    for observation, capacity in ((VECTOR, 1_000_000), (PICTURE, 100_000)):
        assert settled_settings(config, spec_of(observation), 10_000, never)["replay.capacity"] == capacity
    config = make_config(
        "gym/Pendulum-v1", {"replay.min_size": 90_000, "total_steps": 200_000, "replay.capacity": "auto"}, algo="sac"
    )
    assert settled_settings(config, spec_of(PICTURE), 10_000, never)["replay.capacity"] == 180_000
    given = make_config("gym/Pendulum-v1", {"replay.capacity": 5000}, algo="sac")
    assert "replay.capacity" not in settled_settings(given, spec_of(PICTURE), 10_000, never)


def test_what_the_user_gives_stays() -> None:
    given = {
        "epochs": 3,
        "entropy_coef": 0.02,
        "model.shared": True,
        "model.scale_actions": False,
        "learner.precision": "bf16",
        "inference.precision": "bf16",
    }
    assert settled_settings(make_config("gym/Acrobot-v1", given), spec_of(VECTOR), 10_000, never) == {}


def test_real_numbers_get_a_smaller_entropy_bonus() -> None:
    force = BoxHead(low=(-1.0,), high=(1.0,), shape=(1,))
    for action in (
        ActionSpec(heads=(force,), structure="box"),
        ActionSpec(heads=(CategoricalHead(n=3), force), structure="tuple", components=(("discrete", 1), ("box", 1))),
    ):
        settled = settled_settings(make_config("gym/Pendulum-v1"), spec_of(VECTOR, action), 10_000, never)
        assert settled["learner.entropy_coef"] == 0.003


@pytest.mark.parametrize(
    ("low", "high", "is_scaled"),
    [
        ((-1.0, -1.0), (1.0, 1.0), False),
        ((-2.0, -2.0), (2.0, 2.0), True),
        ((-1.0, 0.0), (1.0, 1000.0), True),
        ((0.0, -float("inf")), (1.0, float("inf")), False),
    ],
)
def test_bounded_actions_are_drawn_in_units_of_half_their_range(
    low: tuple[float, ...], high: tuple[float, ...], is_scaled: bool
) -> None:
    action = ActionSpec(heads=(BoxHead(low=low, high=high, shape=(2,)),), structure="box")
    settled = settled_settings(make_config("gym/Pendulum-v1"), spec_of(VECTOR, action), 10_000, never)
    assert settled["model.scale_actions"] is is_scaled
    config = make_config("gym/Pendulum-v1", {"squash_actions": True})
    assert settled_settings(config, spec_of(VECTOR, action), 10_000, never)["model.scale_actions"] is False


def test_a_core_is_shared_by_actor_and_critic() -> None:
    config = make_config("gym/Acrobot-v1", {"model.core": "gru"})
    assert settled_settings(config, spec_of(VECTOR), 10_000, never)["model.shared"] is True


@pytest.mark.slow
def test_a_run_records_what_was_settled_and_keeps_it_on_resume(tmp_path: Path) -> None:
    def recorded() -> tuple[object, object, object]:
        content = json.loads((tmp_path / "config.json").read_text())
        return content["learner"]["epochs"], content["learner"]["precision"], content["inference"]["precision"]

    rollmill.train("gym/Acrobot-v1", run_dir=tmp_path, total_steps=2048, quiet=True)
    assert recorded() == (8, "fp32", "fp32")
    # As if a stopwatch had chosen bf16 in the first session.
    content = json.loads((tmp_path / "config.json").read_text())
    content["learner"]["precision"] = "bf16"
    (tmp_path / "config.json").write_text(json.dumps(content))
    rollmill.train(run_dir=tmp_path, resume=True, total_steps=4096, quiet=True)
    assert recorded() == (8, "bf16", "fp32")


@pytest.mark.slow
def test_actions_of_any_scale_are_learned(tmp_path: Path) -> None:
    from far_actions import TARGET, FarActions

    rollmill.train(FarActions, run_dir=tmp_path, total_steps=30_000, seed=1, quiet=True)
    # Seeds 1 and 2 earned -0.9 and -1.4. Drawn in the environment's units, every action is clipped to 0: -7.0.
    assert rollmill.evaluate(tmp_path, episodes=5, deterministic=True).mean > -2.5
    action = rollmill.load(tmp_path).act(FarActions().reset()[0], deterministic=True)
    assert abs(float(action[0]) - TARGET) < 250.0

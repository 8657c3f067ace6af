"""Runs that begin with the weights of another run, and runs that freeze a part of the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import rollmill
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "learner.batch_size": 32,
    "learner.minibatches": 1,
    "learner.precision": "fp32",
    "inference.precision": "fp32",
    "model.mlp_sizes": "8",
    "rollout.num_workers": 1,
    "total_steps": 128,
}
REPLAY: dict[str, Any] = {
    "algo": "dqn",
    "num_envs": 2,
    "learner.batch_size": 16,
    "replay.capacity": 256,
    "replay.min_size": 32,
    "replay.update_interval": 4,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "8",
    "total_steps": 128,
}
FIRST = {False: SMALL, True: REPLAY}
FIRST_LAYER = {False: "encoder", True: "weight_0,bias_0"}
# Too small to change a float.
STILL = {"learner.learning_rate": 1e-30, "learner.schedule": "constant"}


def train(run_dir: Path, env: str = "gym/CartPole-v1", **settings: Any) -> rollmill.Run:
    return rollmill.train(env, run_dir=run_dir, quiet=True, **settings)


def state_of(run: rollmill.Run) -> dict[str, Any]:
    return CheckpointStore(run.dir / "checkpoints", CheckpointConfig()).load_latest().state


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of weights that differ, without the moments of normalisers, which follow the data."""
    names = [name for name, value in one.items() if isinstance(value, torch.Tensor) and "normaliser" not in name]
    return [name for name in names if not torch.allclose(one[name].float(), other[name].float(), atol=1e-6)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> rollmill.Run:
    return train(tmp_path_factory.mktemp("first"), **SMALL)


@pytest.mark.slow
def test_weights_are_taken_over_and_counters_begin_anew(first: rollmill.Run, tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{**SMALL, **STILL}, init_from=first.dir, seed=5)
    before, after = state_of(first), state_of(run)
    assert differing(before["model"], after["model"]) == []
    assert f"begins with the weights of {first.dir}\n" in (run.dir / "run.log").read_text()
    assert 128 <= after["counters"]["agent_steps"] < 256
    fresh = train(tmp_path / "fresh", **{**SMALL, **STILL}, seed=5)
    assert differing(before["model"], state_of(fresh)["model"])


def test_parts_that_are_skipped_begin_anew(first: rollmill.Run, tmp_path: Path) -> None:
    checkpoint = CheckpointStore(first.dir / "checkpoints", CheckpointConfig()).paths()[0]
    run = train(tmp_path, **{**SMALL, **STILL}, init_from=str(checkpoint), init_skip="heads.policy", seed=5)
    changed = differing(state_of(first)["model"], state_of(run)["model"])
    assert changed
    assert all("heads.policy" in name for name in changed)


@pytest.mark.slow
def test_another_action_space_keeps_the_encoder(first: rollmill.Run, tmp_path: Path) -> None:
    """Acrobot and CartPole differ in everything but the hidden layers, so the first layer's shape is named."""
    with pytest.raises(
        ValueError,
        match=r"shape \(8, 4\) there and \(8, 6\) here.*--init-skip NAME,\.\.\. or init_skip='NAME,\.\.\.'",
    ):
        train(tmp_path / "refused", "gym/Acrobot-v1", **SMALL, init_from=first.dir)
    skipped = {"init_skip": "heads.policy,encoders.0.layers.0,*normaliser"}
    run = train(tmp_path / "run", "gym/Acrobot-v1", **SMALL, init_from=first.dir, **skipped)
    assert run.agent_steps >= 128


@pytest.mark.slow
@pytest.mark.parametrize("in_replay", [False, True])
def test_the_optimisers_moments_are_taken_over(first: rollmill.Run, tmp_path: Path, in_replay: bool) -> None:
    settings = FIRST[in_replay]
    source = train(tmp_path / "source", **settings) if in_replay else first
    runs = {
        name: train(tmp_path / name, **settings, **more, init_from=source.dir)
        for name, more in (("with", {"init_optimiser": True}), ("without", {}))
    }
    steps = {}
    for name, run in (("source", source), *runs.items()):
        (optimiser,) = state_of(run)["updater"]["optimisers"].values()
        steps[name] = float(next(iter(optimiser["moments"].values()))["step"])
    assert steps["with"] > steps["source"]
    assert steps["with"] > steps["without"]


@pytest.mark.slow
@pytest.mark.parametrize("in_replay", [False, True])
def test_frozen_parameters_stay_and_others_learn(tmp_path: Path, in_replay: bool) -> None:
    source = train(tmp_path / "source", **FIRST[in_replay])
    settings = {**FIRST[in_replay], "init_from": source.dir, "learner.freeze": FIRST_LAYER[in_replay]}
    run = train(tmp_path / "run", **settings)
    changed = [n for n in differing(state_of(source)["model"], state_of(run)["model"]) if "target" not in n]
    assert changed
    assert not any("encoder" in name or "_0" in name for name in changed)
    again = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=200)
    assert again.agent_steps >= 200
    log = (run.dir / "run.log").read_text()
    verb = "are" if in_replay else "is"
    assert log.count(f"{FIRST_LAYER[in_replay].replace(',', ', ')} (learner.freeze) {verb} not trained") == 2
    assert re.search(r"policy worker\(s\), [\d,]+ trained parameters of [\d,]+, ", log)
    assert log.count("begins with the weights of") == 1
    with pytest.raises(ValueError, match=r"with another learner\.freeze"):
        rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=300, **{"learner.freeze": ""})


@pytest.mark.slow
def test_parallel_learners_share_the_gradients_of_what_is_trained(tmp_path: Path) -> None:
    settings = {**REPLAY, "learner.num_learners": 2, "learner.freeze": FIRST_LAYER[True]}
    run = train(tmp_path, **settings)
    assert run.agent_steps >= 128


@pytest.mark.slow
def test_a_resumed_run_does_not_need_the_source_again(first: rollmill.Run, tmp_path: Path) -> None:
    source = train(tmp_path / "source", **SMALL)
    run = train(tmp_path / "run", **SMALL, init_from=source.dir)
    (tmp_path / "source").rename(tmp_path / "moved")
    again = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=256)
    assert again.agent_steps >= 256


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_from": "no/such/run"}, "no/such/run is not a run"),
        ({"init_from": "no/such.pt"}, "there is no checkpoint file no/such.pt: no has no checkpoints"),
        ({"init_from": __file__}, "test_initial_weights.py is not a checkpoint file of a run: there is no"),
        ({"init_skip": "heads"}, "give init_from"),
        ({"init_optimiser": True}, "give init_from"),
        (
            {"init_from": "FIRST", "init_skip": "head"},
            r"init_skip=head: no parameter or module .*; did you mean 'heads'\? There are acting\.encoder, [\w., ]+$",
        ),
        ({"init_from": "FIRST", "init_skip": "heads", "init_optimiser": True}, "leave one of them out"),
        ({"init_from": "FIRST", "algo": "dqn"}, r"do not fit.* is not there; and \d+ more"),
        ({"init_from": "FIRST", "model.mlp_sizes": "16"}, r"shape \(8, 4\) there and \(16, 4\) here"),
        (
            {"init_from": "FIRST", "init_optimiser": True, "learner.freeze": "encoder"},
            r"learner\.freeze=none, this one",
        ),
        (
            {"init_from": "FIRST", "init_optimiser": True, "learner.optimiser": "rmsprop"},
            "learner.optimiser=adam, this one rmsprop.*: leave init_optimiser out",
        ),
        ({"learner.freeze": "encoders.7"}, r"learner\.freeze=encoders\.7: no parameter"),
        ({"learner.freeze": "acting"}, "all parameters are frozen"),
    ],
)
def test_what_cannot_begin_is_refused(
    first: rollmill.Run, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    given = {key: str(first.dir) if value == "FIRST" else value for key, value in settings.items()}
    base = {**REPLAY, "algo": "dqn"} if settings.get("algo") else SMALL
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **{**base, **given})


@pytest.mark.slow
def test_policies_begin_with_the_run_s_weights_or_their_own(first: rollmill.Run, tmp_path: Path) -> None:
    other = train(tmp_path / "other", **SMALL, seed=9)
    several = {"population.policies": "a,b", "policy.b.load": str(other.dir)}
    run = train(tmp_path / "run", **{**SMALL, **STILL, **several}, init_from=first.dir)
    for name, source in (("a", first), ("b", other)):
        store = CheckpointStore(run.dir / "policies" / name / "checkpoints", CheckpointConfig())
        assert differing(state_of(source)["model"], store.load_latest().state["model"]) == []

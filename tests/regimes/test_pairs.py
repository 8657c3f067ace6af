"""Runs in which any two values of two settings meet: an error that needs two of them is found."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from tests.regimes.machine import Machine
from tests.regimes.pairs import Case, all_pairs, all_values

import rollmill
from rollmill.envs.registry import register_env
from rollmill.reporting.metrics import read_metrics

GAME, TASKS, MACHINE = "envpool/ConnectFour-v1", "gym/CartPole-v1,gym/Acrobot-v1", "test/machine"
SMALL: Case = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout.num_workers": 2,
    "rollout.decorrelate_steps": 3,
    "model.mlp_sizes": (16,),
    "model.dense_size": 16,
}
ON_POLICY: dict[str, tuple[Any, ...]] = {
    "preset": ("gym/CartPole-v1", "gym/Pendulum-v1", MACHINE, GAME, TASKS),
    "regime": ("async", "lockstep 0", "lockstep 2"),
    "rollout_length": (1, 12),
    "model.core": ("none", "gru", "lstm"),
    "model.shared": (True, False),
    "model.normalise_observations": (True, False),
    "model.normalise_returns": (False, True, "popart"),
    "learner.advantage": ("gae", "vtrace"),
    "learner.clip_kind": ("symmetric", "reciprocal", "none"),
    "learner.value_clip": (None, 0.2),
    "learner.normalise_advantages": (True, False),
    "learner.schedule": ("linear", "kl"),
    "learner.optimiser": ("adam", "rmsprop"),
    "learner.precision": ("fp32", "bf16", "fp64"),
    "learner.micro_batch": ("auto", 24),
    "learner.minibatches": (1, 2),
    "learner.epochs": (1, 2),
    "learner.freeze": ((), ("encoder",)),
    "inference.precision": ("fp32", "bf16"),
    "population.policies": (1, 2),
    "debug_poison": (True, False),
}
OFF_POLICY: dict[str, tuple[Any, ...]] = {
    "preset": ("gym/CartPole-v1", "gym/Pendulum-v1", GAME, TASKS),
    "algo": ("dqn", "sac", "td3", "ddpg"),
    "rollout_length": (1, 12),
    "model.core": ("none", "gru", "lstm"),
    "learner.schedule": ("constant", "linear"),
    "learner.num_learners": (1, 2),
    "learner.precision": ("fp32", "bf16"),
    "replay.priorities": ("uniform", "proportional"),
    "replay.n_step": (1, 3),
    "replay.storage": ("memory", "file"),
    "replay.stratified": (True, False),
    "population.policies": (1, 2),
    "inference.precision": ("fp32", "bf16"),
    "debug_poison": (True, False),
}


def learns_on_policy(case: Case) -> bool:
    """Whether a run may have these settings: all others are refused."""
    return (
        (case["model.core"] == "none" or case["model.shared"])
        and (case["learner.precision"] != "fp64" or case["regime"] != "async")
        and (case["learner.micro_batch"] == "auto" or case["rollout_length"] > 1)
    )


def learns_off_policy(case: Case) -> bool:
    """Likewise."""
    has_numbers = case["preset"] == "gym/Pendulum-v1"
    return (
        (has_numbers if case["algo"] in ("td3", "ddpg") else not has_numbers or case["algo"] == "sac")
        and (
            case["model.core"] == "none"
            or (case["algo"] == "dqn" and case["preset"] != GAME and case["rollout_length"] > 1)
        )
        and case["replay.n_step"] <= case["rollout_length"]
        and (case["learner.num_learners"] == 1 or case["population.policies"] == 1)
    )


def name_of(case: Case) -> str:
    return "-".join(str(value) for value in case.values()).replace("/", "_")


def check(case: Case, folder: Path, steps: int, *, resumes: bool) -> None:
    """Train with these settings, and perhaps go on for as long again."""
    settings = case | SMALL
    preset, algo = settings.pop("preset"), settings.pop("algo", None)
    settings["regime"], *lag = case.get("regime", "replay").split()
    if lag:
        settings["lag"] = int(lag[0])
    if settings["regime"] == "replay":
        settings |= {"replay.min_size": 80, "replay.update_interval": 4, "learner.batch_size": 16}
    if settings["regime"] == "async":
        settings["learner.batch_size"] = 8 * case["rollout_length"]
    if case["model.core"] != "none":
        settings["model.core_size"] = 8
        if settings["regime"] == "replay":
            settings["replay.sequence_length"] = 8
    if case["learner.precision"] == "fp64":  # of the whole network
        del settings["inference.precision"]
    run = rollmill.train(preset, algo=algo, run_dir=folder, quiet=True, total_steps=steps, **settings)
    assert run.agent_steps >= steps
    if resumes:
        run = rollmill.train(run_dir=folder, resume=True, quiet=True, total_steps=2 * steps)
        assert run.agent_steps >= 2 * steps
    losses = {name: value for row in read_metrics(folder) for name, value in row.items() if name.startswith("loss/")}
    assert losses
    assert all(value is None or math.isfinite(value) for value in losses.values()), losses


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env(MACHINE, Machine)


# Found once: every process that collects tests needs seconds for it.
ON_POLICY_PAIRS = all_pairs(ON_POLICY, 0, learns_on_policy)


@pytest.mark.parametrize("case", all_values(ON_POLICY_PAIRS), ids=name_of)
def test_on_policy(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path / "run", 16 * case["rollout_length"], resumes=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_POLICY_PAIRS, ids=name_of)
def test_on_policy_resumed(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path / "run", 16 * case["rollout_length"], resumes=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", all_pairs(OFF_POLICY, 0, learns_off_policy), ids=name_of)
def test_off_policy(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path / "run", 200, resumes=True)


def test_every_pair_of_values_meets() -> None:
    factors = {"a": (1, 2, 3), "b": "xy", "c": (None, 0)}
    cases = all_pairs(factors, 1)
    for (one, these), (other, those) in itertools.combinations(factors.items(), 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == set(itertools.product(these, those))


def test_every_value_occurs_in_fewer_cases() -> None:
    chosen = all_values(ON_POLICY_PAIRS)
    assert len(chosen) < len(ON_POLICY_PAIRS) / 2
    for name, values in ON_POLICY.items():
        assert {case[name] for case in chosen} == set(values)

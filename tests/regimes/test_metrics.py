"""What runs of all regimes write into ``metrics.jsonl``, and what the docs say of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollmill
from rollmill.learning.blank_batches import blank_batch
from rollmill.learning.update import Update
from rollmill.regimes.torch_side import make_off_policy
from rollmill.reporting.metric_table import METRICS, metric_names
from rollmill.reporting.metrics import read_metrics
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.tracking.tensorboard import tensorboard_tag

Rows = dict[str, list[dict[str, Any]]]

# Rows by seconds would come too late to be a hundred, so that those by batches are looked at.
SMALL: dict[str, object] = {
    "learner.precision": "fp32",
    "learner.channels_last": False,
    "inference.precision": "fp32",
    "model.mlp_sizes": "16",
    "rollout.num_workers": 1,
    "report_every_s": 3600.0,
}
ON_POLICY: dict[str, object] = {
    "num_envs": 8,
    "rollout_length": 4,
    "learner.batch_size": 32,
    "learner.epochs": 2,
    "learner.minibatches": 2,
    "learner.micro_batch": 16,
    "total_steps": 4000,
}
RUNS: dict[str, dict[str, object]] = {
    "async": ON_POLICY,
    "lockstep": {"regime": "lockstep", "lag": 1, **ON_POLICY},
    "replay": {
        "algo": "dqn",
        "num_envs": 4,
        "learner.batch_size": 16,
        "replay.capacity": 256,
        "replay.min_size": 50,
        "replay.update_interval": 4,
        "total_steps": 600,
    },
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains in a regime, once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def train(regime: str) -> Path:
        settings: Any = {**RUNS[regime], **SMALL}
        return rollmill.train("gym/CartPole-v1", run_dir=folder / regime, quiet=True, **settings).dir

    return train


@pytest.fixture(scope="module")
def rows(run_of: Callable[[str], Path]) -> Rows:
    class Runs(dict[str, list[dict[str, Any]]]):
        def __missing__(self, regime: str) -> list[dict[str, Any]]:
            self[regime] = read_metrics(run_of(regime))
            return self[regime]

    return Runs()


@pytest.mark.slow
@pytest.mark.parametrize("regime", RUNS)
def test_a_run_has_at_least_a_hundred_rows_however_fast_it_is(rows: Rows, regime: str) -> None:
    assert rows[regime][-1]["batches"] >= 100
    assert len(rows[regime]) >= 100
    steps = [row["agent_steps"] for row in rows[regime]]
    assert steps == sorted(steps)
    times = [row["time_s"] for row in rows[regime]]
    assert times == sorted(times)


def test_counters_mean_the_same_in_every_regime(rows: Rows) -> None:
    for row in [*rows["async"], *rows["lockstep"]]:
        assert row["sgd_steps"] == 4 * row["batches"]
    for row in rows["replay"]:
        assert row["sgd_steps"] == row["batches"]
    # What is published and acts: in lockstep the i-th version follows the i-th batch.
    for row in rows["lockstep"]:
        assert row["policy_version"] == row["batches"]
    for row in [*rows["async"], *rows["replay"]]:
        assert 0 <= row["sgd_steps"] - row["policy_version"] <= 3
    assert rows["async"][-1]["policy_version"] == rows["async"][-1]["sgd_steps"]


def test_lag_is_in_policy_versions_and_what_is_expected_is_the_lag_of_lockstep(rows: Rows) -> None:
    lockstep = [row for row in rows["lockstep"] if row["batches"] > 1]
    assert {row["policy_lag_expected"] for row in lockstep} == {1.0}
    assert {(row["policy_lag_mean"], row["policy_lag_max"]) for row in lockstep} == {(1.0, 1)}
    assert {row["policy_lag_expected"] for row in rows["async"]} == {0.0}, "one rollout of all rows is one batch"


def test_an_interval_without_samples_shows_no_zeros(rows: Rows) -> None:
    of_samples = ("policy_lag_mean", "policy_lag_max", "versions_per_trajectory")
    for regime in ("async", "lockstep"):
        first, *others = rows[regime]
        assert first["batches"] == 0
        assert [first[name] for name in (*of_samples, "steps_per_second")] == [None] * 4
        assert all(row[name] is not None for row in others for name in of_samples)
        assert max(row["policy_lag_max"] for row in others) > 0
    assert rows["replay"][0]["replay/age"] is None
    for before, row in pairwise(rows["replay"]):
        assert (row["replay/age"] is None) == (row["batches"] == before["batches"])
    assert not {"policy_lag_mean", "stale_samples"} & rows["replay"][-1].keys(), "a replay has none of it"


def test_every_key_is_on_the_page_and_every_key_of_the_page_exists(rows: Rows) -> None:
    written = {key for regime in RUNS for row in rows[regime] for key in row}
    assert written <= metric_names()
    # The losses of other algorithms are looked at below, what several learners have in the replay regime's own tests.
    others = {f"loss/{name}" for name in _statistics("sac") | _statistics("td3")}
    of_learners = {name for name in metric_names() if name.startswith(("learners/", "share/gradient learner/"))}
    of_some = {"actions_at_bound", "env/NAME", "agent/NAME/episode_return", "rating", "snapshots", "past_win_rate"}
    of_some |= {f"task/NAME/{name}" for name in ("episode_return", "score", "samples", "compute")}
    of_some |= {f"score/{name}" for name in ("mean", "median", "mean_capped")}
    of_some |= {"pbt/score", "pbt/generation", "pbt/NUMBER"}
    of_some |= {"policy/NAME/agent_steps", "policy/NAME/episode_return", "policy/NAME/rating", "win_rate/NAME"}
    assert metric_names() - written == (others | of_learners | of_some) - written
    for metric in (metric for group in METRICS.values() for metric in group):
        for regime in RUNS:
            if regime not in metric.regimes:
                assert not any(metric.name in row for row in rows[regime]), (metric.name, regime)
            elif metric.when == "every row":
                assert all(metric.name in row for row in rows[regime]), (metric.name, regime)


def _statistics(algo: str) -> set[str]:
    """Names of the losses that an off-policy algorithm reports."""
    head = CategoricalHead(n=2) if algo == "dqn" else BoxHead(shape=(1,), low=(-1.0,), high=(1.0,))
    structure: Any = "discrete" if algo == "dqn" else "box"
    spec = EnvSpec(
        name="any",
        observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
        action=ActionSpec(heads=(head,), structure=structure),
    )
    preset = "gym/CartPole-v1" if algo == "dqn" else "gym/Pendulum-v1"
    config = rollmill.make_config(preset, {"model.mlp_sizes": "8", "replay.n_step": 1}, algo=algo)
    algorithm = make_off_policy(config, spec)
    updater = Update(algorithm, config.optimiser)
    batch = blank_batch(spec, config.replay, 4, algorithm.state_size, torch.device("cpu"))
    for _ in range(2):
        updater.step([batch])
    return set(updater.take_statistics())


@pytest.mark.parametrize("algo", ["dqn", "ddpg", "td3", "sac"])
def test_losses_of_every_algorithm_are_on_the_page(algo: str) -> None:
    losses = [metric for metric in METRICS["Losses"] if "replay" in metric.regimes]
    of_algo = {m.name for m in losses if "with" not in m.when or algo.upper() in m.when}
    assert {f"loss/{name}" for name in _statistics(algo)} == of_algo


def test_tensorboard_has_the_same_names(run_of: Callable[[str], Path], rows: Rows) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_of("lockstep") / "tensorboard")).Reload()
    numbers = {k for row in rows["lockstep"] for k, v in row.items() if isinstance(v, int | float)}
    assert set(events.Tags()["scalars"]) == {tensorboard_tag(name) for name in numbers}
    lags = [row["policy_lag_mean"] for row in rows["lockstep"] if row["policy_lag_mean"] is not None]
    np.testing.assert_allclose([event.value for event in events.Scalars("run/policy_lag_mean")], lags)

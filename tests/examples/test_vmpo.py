"""The example of an on-policy algorithm of one's own: trained, saved, resumed and evaluated like a built-in one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.algorithms import registry
from rollmill.evaluation.snapshot import read_snapshot

EXAMPLE = Path(__file__).parents[2] / "examples/vmpo.py"
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 16,
    "learner.batch_size": 64,
    "learner.minibatches": 2,
    "rollout.num_workers": 1,
    "env.imports": (str(EXAMPLE),),
}


@pytest.fixture(autouse=True)
def forget_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry.ALGORITHMS, "factories", dict(registry.ALGORITHMS.factories))
    monkeypatch.setattr(registry, "_on_policy", set(registry._on_policy))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(EXAMPLE):
            del sys.modules[name]


def train(run_dir: Path, **settings: Any) -> rollmill.Run:
    from rollmill.envs.user_code import import_user_code

    import_user_code(str(EXAMPLE))
    return rollmill.train(
        "gym/CartPole-v1", algo="vmpo", run_dir=run_dir, quiet=True, **{**SMALL, "total_steps": 512, **settings}
    )


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"regime": "async"}, {"regime": "lockstep", "model.core": "gru"}])
def test_its_own_parameters_are_learned_saved_and_resumed(settings: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path / "run", **settings)
    first = read_snapshot(run.dir)
    assert first.algorithm.algorithm == "vmpo"
    assert float(first.weights["log_eta"]) != 0.0
    assert float(first.weights["log_alpha"]) != 0.0
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=1024)
    second = read_snapshot(run.dir)
    assert second.agent_steps > first.agent_steps
    assert float(second.weights["log_eta"]) != float(first.weights["log_eta"])
    assert len(rollmill.evaluate(run.dir, episodes=2).returns) == 2


@pytest.mark.slow
def test_it_is_reproducible_in_lockstep(tmp_path: Path) -> None:
    hashes = []
    for name, workers in (("a", 1), ("b", 2)):
        settings = {"regime": "lockstep", "debug_fingerprints": True, "rollout.num_workers": workers}
        run = train(tmp_path / name, **settings)
        hashes.append((run.dir / "fingerprints.jsonl").read_text().splitlines()[:8])
    assert hashes[0] == hashes[1]


@pytest.mark.slow
def test_it_learns_cartpole(tmp_path: Path) -> None:
    from rollmill.envs.user_code import import_user_code

    import_user_code(str(EXAMPLE))
    settings: dict[str, Any] = {"env.imports": (str(EXAMPLE),)}
    run = rollmill.train(
        "gym/CartPole-v1", algo="vmpo", run_dir=tmp_path / "run", total_steps=150_000, quiet=True, **settings
    )
    assert run.episode_return is not None
    assert run.episode_return > 200, "a policy that does not learn has about 22"

"""Agents that are published and fetched, with the real client and a stand-in for the Hub."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import Crowd
from tests.evaluation.hub_server import Hub, hub

import rollmill
from rollmill.evaluation.hub import HubError, fetch, push
from rollmill.extras import MissingPackageError
from rollmill.runtime.signed_files import UntrustedError
from rollmill.storage.checkpoint_file import load_checkpoint

pytest.importorskip("huggingface_hub")

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "learner.minibatches": 1,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "8",
    "total_steps": 64,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rollmill.Run:
    return rollmill.train("gym/CartPole-v1", run_dir=tmp_path_factory.mktemp("run"), quiet=True, **SMALL)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_a_published_agent_acts_as_before(run: rollmill.Run, server: Hub) -> None:
    found = push(run.dir, "me/agent", episodes=3, video=False, private=True)
    assert found.url == f"{server.url}/me/agent"
    assert server.created[0].get("visibility") == "private" or server.created[0].get("private") is True
    assert sorted(server.files) == [
        "README.md",
        f"checkpoints/checkpoint_000001_steps_{run.agent_steps:012d}_end.pt",
        "config.json",
        "results.json",
        "spaces.json",
    ]
    assert f"{found.result.mean:,.2f}" in server.files["README.md"].decode()
    assert "signature" not in json.loads(server.files["config.json"])
    agent, published = rollmill.load(run.dir), rollmill.load("hf://me/agent")
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(agent.act(observations, deterministic=True), published.act(observations, deterministic=True))
    assert published.snapshot.agent_steps == run.agent_steps


def test_neither_optimisers_nor_states_of_environments_are_published(run: rollmill.Run, server: Hub) -> None:
    push(run.dir, "me/agent", episodes=1, video=False)
    (file,) = (fetch("hf://me/agent@main") / "checkpoints").iterdir()
    assert set(load_checkpoint(file)) == {"model", "counters"}


def test_what_would_be_published_can_be_looked_at(
    run: rollmill.Run, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    found = push(run.dir, "me/agent", episodes=1, video=False, to_folder=tmp_path / "a" / "look")
    assert found.url == str(tmp_path / "a" / "look")
    assert not server.created
    files = {path.name for path in (tmp_path / "a" / "look").iterdir()}
    assert files == {"README.md", "checkpoints", "config.json", "results.json", "spaces.json"}
    assert "tracking" not in json.loads((tmp_path / "a" / "look" / "config.json").read_text())
    assert rollmill.load(tmp_path / "a" / "look").snapshot.agent_steps == run.agent_steps
    with pytest.raises(HubError, match=r"look cannot be made \(File exists\): give a new one"):
        push(run.dir, "me/agent", episodes=1, video=False, to_folder=tmp_path / "a" / "look")


def test_a_policy_is_evaluated_as_the_agents_that_it_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    rollmill.register_env("test/crowd", Crowd)
    roles = {"policies": "a,b", "policy.a.agents": "ann,bob", "policy.b.agents": "cid"}
    settings = {**SMALL, "learner.batch_size": 32, **roles}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, **settings)
    own = push(run.dir, "me/b", policy="b", episodes=4, video=False, to_folder=tmp_path / "b").result
    mean, _, _ = rollmill.evaluate(run.dir, episodes=4).policies["b"]
    assert own.mean == pytest.approx(mean)
    card = (tmp_path / "b/README.md").read_text()
    assert "test/crowd" in card
    assert "Python" in card.partition("## Training")[2], "versions are in the log of the whole run"


def test_nothing_is_made_for_an_agent_that_cannot_be_evaluated(
    run: rollmill.Run, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("rollmill.extras.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match="a video needs"):
            push(run.dir, "me/agent", episodes=1)
    with monkeypatch.context() as patch:
        patch.setattr("rollmill.evaluation.hub.require_trusted", refuse)
        with pytest.raises(UntrustedError):
            push(run.dir, "me/agent", episodes=1, video=False)
    assert not server.created


def refuse(*_: Any, **__: Any) -> None:
    raise UntrustedError("of somebody else")


@pytest.mark.parametrize("name", ["agent", "me/agent/x", "", "me/../x", "me/a b"])
def test_names_that_no_repository_has(run: rollmill.Run, server: Hub, name: str) -> None:
    with pytest.raises(HubError, match="give USER/NAME"):
        push(run.dir, name, episodes=1, video=False)


def test_a_hub_that_refuses_says_so(run: rollmill.Run, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.refuses = True
    # Before it is evaluated, which takes time.
    monkeypatch.setattr("rollmill.evaluation.hub.evaluate_snapshot", lambda *_, **__: pytest.fail("it was evaluated"))
    with pytest.raises(HubError, match=r"(?s)does not take me/agent.*Log in"):
        push(run.dir, "me/agent", episodes=1, video=False)


def test_without_a_network_the_hub_is_not_reached(run: rollmill.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # A port on which nothing listens.
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        with pytest.raises(HubError, match=r"cannot be reached to write me/agent: .*Check the network"):
            push(run.dir, "me/agent", episodes=1, video=False)
        with pytest.raises(HubError, match="hf://me/agent cannot be fetched"):
            rollmill.load("hf://me/agent")


def test_an_agent_that_does_not_exist_is_named(server: Hub) -> None:
    with pytest.raises(HubError, match="hf://me/nothing cannot be fetched"):
        rollmill.load("hf://me/nothing")


@pytest.mark.slow
def test_a_second_push_replaces_the_first(run: rollmill.Run, server: Hub, tmp_path: Path) -> None:
    push(run.dir, "me/agent", episodes=1, video=False)
    server.files["replay.mp4"] = b"of another agent"
    longer = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "longer", quiet=True, **{**SMALL, "total_steps": 200})
    push(longer.dir, "me/agent", episodes=1, video=False)
    (checkpoint,) = [name for name in server.files if name.startswith("checkpoints/")]
    assert f"{longer.agent_steps:012d}" in checkpoint
    assert "replay.mp4" not in server.files
    assert "spaces.json" in server.files

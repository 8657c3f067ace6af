"""``rollmill push``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evaluation.hub_server import hub

import rollmill
from rollmill.cli.program import main

pytest.importorskip("huggingface_hub")


@pytest.mark.slow
def test_it_publishes_an_agent_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"num_envs": 4, "rollout_length": 8, "learner.batch_size": 64, "learner.minibatches": 1}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=64, **small)
    with hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        assert main(["push", str(run.dir), "me/agent", "--episodes", "2", "--no-video", "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["url"] == f"{server.url}/me/agent"
        assert "README.md" in server.files
        server.refuses = True
        assert main(["push", str(run.dir), "me/agent", "--episodes", "2", "--no-video"]) == 1
        assert "Log in" in capsys.readouterr().err
    assert main(["push", str(run.dir), "me/agent", "--device", "cuda:99"]) == 2
    assert "cuda:99" in capsys.readouterr().err
    assert main(["push", str(run.dir), "no name"]) == 1
    assert "give USER/NAME" in capsys.readouterr().err

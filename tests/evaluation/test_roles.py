"""Which agents a policy plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.envs.agent_games import Crowd

from rollmill.envs.config import EnvConfig
from rollmill.envs.registry import register_env
from rollmill.evaluation.roles import role_of

CROWD = EnvConfig(name="test/crowd")


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/crowd", Crowd)


def run_with(tmp_path: Path, population: Mapping[str, object], policy: Mapping[str, object]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"population": dict(population), "policy": dict(policy)}))
    return tmp_path


def test_policies_that_play_everything_have_no_role(tmp_path: Path) -> None:
    run_dir = run_with(tmp_path, {"policies": ["a", "b"]}, {})
    assert role_of(run_dir / "policies" / "a", CROWD) is None
    all_named = run_with(tmp_path, {"policies": ["a", "b"]}, {"a.agents": "*", "b.agents": "*"})
    assert role_of(all_named / "policies" / "b", CROWD) is None


def test_a_role_has_the_seats_and_the_folders_of_all_policies(tmp_path: Path) -> None:
    run_dir = run_with(tmp_path, {"policies": ["a", "b"]}, {"a.agents": "ann,bob", "b.agents": "c*"})
    role = role_of(run_dir / "policies" / "a", CROWD)
    assert role is not None
    assert (role.run_dir, role.policy, role.seats) == (run_dir, "a", (0, 1))
    assert role.others == (run_dir / "policies" / "a", run_dir / "policies" / "b")
    assert not role.is_ready


def test_a_run_in_a_folder_called_policies_is_no_policy(tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "mine"
    folder.mkdir(parents=True)
    assert role_of(run_with(folder, {}, {}), CROWD) is None


def test_one_policy_beside_a_guest_has_a_role(tmp_path: Path) -> None:
    run_dir = run_with(tmp_path, {"guests": ["random"]}, {"random.agents": "cid"})
    role = role_of(run_dir, CROWD)
    assert role is not None
    assert (role.run_dir, role.seats) == (run_dir, (0, 1))

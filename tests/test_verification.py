"""The command that shows that runs come out the same, and says where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollmill.api import Run
from rollmill.cli import main
from rollmill.learning.fingerprints import Difference
from rollmill.settings.value_checks import ConfigError
from rollmill.verification import Verification, verify

TINY = {"num_envs": 8, "envs_per_group": 2, "rollout_length": 8, "learner.minibatches": 2}


@pytest.mark.slow
def test_the_command_finds_two_runs_equal(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for key, value in TINY.items() for word in (f"--{key}", str(value))]
    assert main(["verify", "gym/CartPole-v1", "--updates", "3", "--lag", "0", "--json", *settings]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["equal"] is True
    assert found["regime"] == "lockstep"
    assert found["hash_a"] == found["hash_b"]
    assert len(found["hash_a"]) == 64
    assert found["updates"] == 3
    assert found["difference"] is None


@pytest.mark.slow
def test_an_environment_that_ignores_its_seed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "regimes"))
    import faulty_envs  # noqa: F401  # registers it

    result = verify("test/unseeded", updates=2, **{**TINY, "env.imports": ("faulty_envs",)})
    assert not result.equal
    assert result.difference == Difference(0, "environment", 1) or result.difference == Difference(0, "environment", 0)
    assert "environment (the same actions led to other observations" in result.describe()


class Forgetful(gymnasium.Env[np.ndarray, int]):
    """Pickles as if it had just been made."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def __reduce__(self) -> Any:
        return Forgetful, ()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, self.steps % 50 == 0, {}


@pytest.mark.slow
def test_an_environment_that_is_not_saved_as_it_is_is_named() -> None:
    result = verify(Forgetful, updates=4, **TINY)
    assert result.difference is not None
    assert (result.difference.update, result.difference.part) == (2, "environment")
    assert "checkpoint.save_environments=false" in result.describe()
    assert verify(Forgetful, updates=4, **{**TINY, "checkpoint.save_environments": False}).equal


def test_an_interrupted_run_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def interrupted(*_: object, **__: object) -> Run:
        ended.append(1)
        return Run(Path("run"), 0, None, "", "signal")

    monkeypatch.setattr("rollmill.verification.train", interrupted)
    assert main(["verify", "gym/CartPole-v1"]) == 130
    assert ended == [1]


def test_no_update_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        verify("gym/CartPole-v1", updates=0)


def test_a_replay_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"regime='replay' cannot be verified.*lockstep"):
        verify("gym/CartPole-v1", algo="dqn", regime="replay")
    assert main(["verify", "gym/CartPole-v1", "--algo", "dqn"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rollmill: ")


def test_a_difference_names_a_resume_only_after_one() -> None:
    def described(resumed_from: int) -> str:
        first = Difference(resumed_from, "environment", 0)
        return Verification("lockstep", 3, "a" * 64, "b" * 64, False, first, (1, 1), (2, 2), resumed_from).describe()

    assert "does not follow its seed" in described(0)
    assert "resumed" not in described(0)
    assert "checkpoint.save_environments=false" in described(2)


@pytest.mark.slow
def test_async_is_said_to_differ_by_itself() -> None:
    result = verify("gym/CartPole-v1", updates=2, regime="async", **TINY)
    assert not result.equal
    assert result.updates == 2
    assert result.difference == Difference(0, "batch", None)
    assert "the async regime learns from whichever slots were completed first" in result.describe()
    for wrong in ("does not follow its seed", "resumed", "unpickled"):
        assert wrong not in result.describe()

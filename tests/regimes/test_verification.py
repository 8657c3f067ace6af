"""The command that shows that runs come out the same, and says where they do not."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollmill.cli import main
from rollmill.learning.fingerprints import Difference, first_difference
from rollmill.verification import verify

TINY = {"num_envs": 8, "envs_per_group": 2, "rollout_length": 8, "learner.minibatches": 2}


def test_the_command_finds_two_runs_equal(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for key, value in TINY.items() for word in (f"--{key}", str(value))]
    assert main(["verify", "gym/CartPole-v1", "--updates", "4", "--lag", "0", "--json", *settings]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["equal"] is True
    assert found["hash_a"] == found["hash_b"]
    assert len(found["hash_a"]) == 64
    assert found["updates"] >= 4
    assert found["difference"] is None


@pytest.mark.slow
def test_an_environment_that_ignores_its_seed_is_named() -> None:
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


def test_the_first_difference_names_the_part() -> None:
    def line(update: int, environment: str, inference: str, learner: str) -> dict[str, Any]:
        chain = f"{update}{environment}{inference}{learner}"
        parts = {"environment": list(environment), "inference": list(inference)}
        return {"update": update, **parts, "learner": learner, "chain": chain}

    base = [line(0, "abc", "xyz", "p"), line(1, "abc", "xyz", "p")]
    assert first_difference(base, base) is None
    # The action at step 1 differs, and what it leads to: the action was first.
    assert first_difference(base, [base[0], line(1, "abd", "xqz", "p")]) == Difference(1, "inference", 1)
    # The environment showed something else at step 1 before anything was chosen there.
    assert first_difference(base, [base[0], line(1, "adc", "xqz", "p")]) == Difference(1, "environment", 1)
    assert first_difference(base, [line(0, "abc", "xyz", "q"), base[1]]) == Difference(0, "learner", None)


def test_no_update_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        verify("gym/CartPole-v1", updates=0)

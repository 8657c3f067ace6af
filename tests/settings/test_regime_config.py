"""The regimes' own settings, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rollmill.algorithms.off_policy_config import DQNConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.settings.regime_config import AsyncConfig, LockstepConfig, ReplayRegimeConfig


def test_defaults() -> None:
    free, lockstep, replay = AsyncConfig(), LockstepConfig(), ReplayRegimeConfig()
    assert [regime.name for regime in (free, lockstep, replay)] == ["async", "lockstep", "replay"]
    assert free.algorithm == lockstep.algorithm == OnPolicyConfig()
    assert replay.algorithm == DQNConfig()
    assert (free.admission, free.num_slots, free.max_policy_lag, free.publish_every) == ("fifo", "auto", 1000, 2)
    assert (replay.publish_every, replay.num_learners) == (2, 1)


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_no_sample_of_lockstep_is_older_than_its_lag(lag: int) -> None:
    assert LockstepConfig(lag=lag).max_policy_lag == lag


@pytest.mark.parametrize(("learners", "given", "bound"), [(1, "auto", 2), (3, "auto", 6), (3, 2, 2), (2, 9, 9)])
def test_the_bound_on_staleness_is_twice_the_learners_or_what_is_given(learners: int, given: Any, bound: int) -> None:
    assert ReplayRegimeConfig(num_learners=learners, max_staleness=given).staleness_bound == bound


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (AsyncConfig, {"admission": ""}, "^admission='': give a name"),
        (AsyncConfig, {"num_slots": 0}, "^num_slots=0: give an integer of at least 1, or 'auto'"),
        (AsyncConfig, {"max_policy_lag": -1}, r"^learner\.max_policy_lag=-1: give an integer of at least 0"),
        (AsyncConfig, {"publish_every": 0}, r"^learner\.publish_every=0: give an integer of at least 1"),
        (
            LockstepConfig,
            {"lag": -1},
            r"^lag=-1: give an integer of at least 0 \(0: collecting and learning",
        ),
        (ReplayRegimeConfig, {"publish_every": True}, r"^learner\.publish_every=True: give an integer of at least 1"),
        (ReplayRegimeConfig, {"num_learners": 0}, r"^learner\.num_learners=0: give an integer of at least 1"),
        (ReplayRegimeConfig, {"max_staleness": "none"}, r"^learner\.max_staleness='none'"),
        (
            ReplayRegimeConfig,
            {"max_staleness": 5},
            r"^learner\.max_staleness=5 with one learner, whose gradients are never stale: leave it out, or",
        ),
        (
            ReplayRegimeConfig,
            {"max_staleness": 1, "num_learners": 3},
            r"^learner\.max_staleness=1: give an integer of at least 2, or 'auto'$",
        ),
    ],
)
def test_values_that_no_run_could_use_are_refused(kind: type, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**changes)


def test_reading_it_imports_no_torch() -> None:
    code = "import sys, rollmill.settings.regime_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

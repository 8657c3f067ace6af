"""Invalid configurations, and that importing the configuration does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rollmill.algorithms.config import OffPolicyConfig


def test_defaults_are_allowed() -> None:
    assert OffPolicyConfig().algorithm == "dqn"
    OffPolicyConfig(tau=0.5, temperature=0.0, target_entropy=-3, epsilon_steps=10, target_noise=0.0, policy_delay=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": ""}, "off_policy.algorithm='': give a registered name"),
        ({"double": 1}, "off_policy.double=1: choose one of True, False"),
        ({"value_rescaling": 1}, "off_policy.value_rescaling=1: choose one of True, False"),
        ({"value_loss": "mae"}, "off_policy.value_loss='mae': choose one of 'mse', 'huber', None"),
        ({"epsilon_kind": "boltzmann"}, "off_policy.epsilon_kind='boltzmann': choose one of 'schedule', 'ladder'"),
        ({"noise_kind": None}, "off_policy.noise_kind=None: choose one of 'gaussian', 'ou', 'pink'"),
        ({"tau": 0.0}, "off_policy.tau=0.0: give a finite number above 0 and at most 1, or None"),
        ({"tau": 1.5}, "off_policy.tau=1.5"),
        ({"target_update_every": 0}, "off_policy.target_update_every=0: give an integer of at least 1, or None"),
        ({"policy_delay": 1.0}, "off_policy.policy_delay=1.0: give an integer of at least 1"),
        ({"num_critics": None}, "off_policy.num_critics=None: give an integer of at least 1"),
        ({"random_steps": -1}, "off_policy.random_steps=-1: give an integer of at least 0"),
        ({"temperature": "learned"}, "off_policy.temperature='learned': give a finite number 0 or more, or \"auto\""),
        ({"initial_temperature": 0.0}, "off_policy.initial_temperature=0.0: give a finite number above 0"),
        ({"target_entropy": float("nan")}, "off_policy.target_entropy=nan: give a finite number"),
        ({"epsilon_start": 1.1}, "off_policy.epsilon_start=1.1: give a finite number in"),
        ({"epsilon_fraction": 0.0}, "off_policy.epsilon_fraction=0.0: give a finite number above 0 and at most 1"),
        ({"ladder_epsilon": 0.0}, "off_policy.ladder_epsilon=0.0"),
        ({"noise_std": True}, "off_policy.noise_std=True: give a finite number 0 or more"),
        ({"ou_dt": 0.0}, "off_policy.ou_dt=0.0: give a finite number above 0"),
        ({"actor_learning_rate": 0.0}, "off_policy.actor_learning_rate=0.0: give a finite number above 0, or None"),
    ],
)
def test_invalid_values_raise(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        OffPolicyConfig(**change)  # type: ignore[arg-type]


def test_reading_it_imports_no_torch() -> None:
    code = "import sys, rollmill.algorithms.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

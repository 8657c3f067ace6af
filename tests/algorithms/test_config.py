"""Invalid configurations, and that importing the configuration does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rollmill.algorithms.off_policy_config import (
    OFF_POLICY_ALGORITHMS,
    DDPGConfig,
    DQNConfig,
    OwnOffPolicyConfig,
    SACConfig,
    TD3Config,
    off_policy_config_of,
)


def test_defaults_are_allowed() -> None:
    assert [kind().algorithm for kind in (DQNConfig, DDPGConfig, TD3Config, SACConfig)] == list(OFF_POLICY_ALGORITHMS)
    own = {"tau": 0.5, "temperature": 0.0, "target_entropy": -3, "epsilon_steps": 10, "target_noise": 0.0}
    assert OwnOffPolicyConfig(algorithm="mine", policy_delay=3, **own).policy_delay == 3


def test_an_algorithm_has_no_settings_of_others() -> None:
    for kind, foreign in ((DQNConfig, "policy_delay"), (DDPGConfig, "num_critics"), (SACConfig, "noise_std")):
        with pytest.raises(TypeError, match=foreign):
            kind(**{foreign: 1})


@pytest.mark.parametrize("name", [*OFF_POLICY_ALGORITHMS, "mine"])
def test_the_name_decides_the_settings(name: str) -> None:
    assert off_policy_config_of(name)(algorithm=name).algorithm == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": ""}, "off_policy.algorithm='': give a name"),
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
        ({"temperature": "learned"}, "off_policy.temperature='learned': give a finite number of 0 or more, or 'auto'"),
        ({"initial_temperature": 0.0}, "off_policy.initial_temperature=0.0: give a finite number above 0"),
        ({"target_entropy": float("nan")}, "off_policy.target_entropy=nan: give a finite number"),
        ({"epsilon_start": 1.1}, "off_policy.epsilon_start=1.1: give a finite number in"),
        ({"epsilon_fraction": 0.0}, "off_policy.epsilon_fraction=0.0: give a finite number above 0 and at most 1"),
        ({"ladder_epsilon": 0.0}, "off_policy.ladder_epsilon=0.0"),
        ({"noise_std": True}, "off_policy.noise_std=True: give a finite number of 0 or more"),
        ({"ou_dt": 0.0}, "off_policy.ou_dt=0.0: give a finite number above 0"),
        ({"actor_learning_rate": 0.0}, "off_policy.actor_learning_rate=0.0: give a finite number above 0, or None"),
    ],
)
def test_invalid_values_raise(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        OwnOffPolicyConfig(**{"algorithm": "mine", **change})


def test_reading_it_imports_no_torch() -> None:
    code = "import sys, rollmill.algorithms.off_policy_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

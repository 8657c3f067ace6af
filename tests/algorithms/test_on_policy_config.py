"""Settings of on-policy algorithms: defaults, what they mean together, and what is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from rollmill.algorithms.on_policy_config import OnPolicyConfig, auto_entropy_coef, auto_epochs


def test_defaults_are_sample_factorys() -> None:
    # Table A.5 of arXiv:2006.11751.
    config = OnPolicyConfig()
    assert config.discount == 0.99
    assert config.clip_kind == "reciprocal"
    assert config.clip_range == 0.1
    assert config.value_coef == 0.5
    assert config.entropy_coef == 0.003


def test_derived_sizes() -> None:
    config = OnPolicyConfig(batch_size=4096, minibatches=4, epochs=3)
    assert config.minibatch_size == 1024
    assert config.sgd_steps_per_batch == 12
    assert config.num_epochs == 3
    assert OnPolicyConfig(entropy_coef=0.25).entropy_weight == 0.25


def test_what_auto_stands_for() -> None:
    assert auto_entropy_coef(has_real_numbers=True) == 0.003
    assert auto_entropy_coef(has_real_numbers=False) == 0.01
    assert (auto_epochs(has_images=True), auto_epochs(has_images=False)) == (4, 8)


@pytest.mark.parametrize("name", ["num_epochs", "sgd_steps_per_batch", "entropy_weight"])
def test_auto_has_no_number_before_the_environment_is_known(name: str) -> None:
    config = OnPolicyConfig(epochs="auto", entropy_coef="auto")
    with pytest.raises(AssertionError, match="settled when the environment is known"):
        getattr(config, name)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("algorithm", "", "give a name"),
        ("batch_size", 0, "integer of at least 1"),
        ("batch_size", 2.0, "integer of at least 1"),
        ("minibatches", True, "integer of at least 1"),
        ("epochs", -1, "integer of at least 1, or 'auto'"),
        ("discount", 1.01, r"in \[0, 1\]"),
        ("discount", float("nan"), r"in \[0, 1\]"),
        ("gae_lambda", -0.1, r"in \[0, 1\]"),
        ("vtrace_lambda", 2.0, r"in \[0, 1\]"),
        ("vtrace_rho", 0.0, "above 0"),
        ("vtrace_c", float("inf"), "finite"),
        ("clip_range", 0.0, "clip_kind='none'"),
        ("value_clip", -1.0, "None to switch it off"),
        ("value_coef", -0.5, "0 or more"),
        ("entropy_coef", "0.01", "finite number of 0 or more"),
        ("entropy_floor", 1.0, "0 switches it off"),
        ("reward_scale", 0.0, "above 0"),
        ("reward_clip", 0.0, "None to switch it off"),
        ("advantage", "td", "'gae', 'vtrace'"),
        ("clip_kind", None, "'reciprocal', 'symmetric', 'none'"),
        ("entropy_schedule", "kl", "'constant', 'linear'"),
        ("clip_schedule", "kl", "'constant', 'linear'"),
        ("normalise_advantages", 1, "True, False"),
    ],
)
def test_out_of_range_values_raise(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^learner\.{field}=.*{allowed}"):
        OnPolicyConfig(**{field: value})


def test_minibatches_must_have_equal_sizes() -> None:
    expected = (
        r"^learner\.batch_size=1000 is not a multiple of learner\.minibatches=3: minibatches have equal sizes; "
        "use batch_size=1002$"
    )
    with pytest.raises(ValueError, match=expected):
        OnPolicyConfig(batch_size=1000, minibatches=3)
    assert OnPolicyConfig(batch_size=1002, minibatches=3).minibatch_size == 334


def test_a_symmetric_range_of_ratios_stays_above_0() -> None:
    with pytest.raises(ValueError, match=r"learner\.clip_range=1\.0 with .*'symmetric': .* give less than 1, or clip"):
        OnPolicyConfig(clip_range=1.0, clip_kind="symmetric")
    assert OnPolicyConfig(clip_range=1.0, clip_kind="reciprocal").clip_range == 1.0


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        OnPolicyConfig().epochs = 2


def test_reading_it_imports_no_torch() -> None:
    code = "import sys, rollmill.algorithms.on_policy_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

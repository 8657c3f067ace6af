from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from rollmill.envs.config import EnvConfig
from rollmill.learning.config import Adam, ComputeConfig, FixedSchedule, KlSchedule, OptimiserConfig, RMSprop
from rollmill.settings.config import Config
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import apply
from rollmill.settings.value_checks import key_of


def test_defaults_are_sample_factorys() -> None:
    # Table A.5 of arXiv:2006.11751.
    optimiser = OptimiserConfig()
    assert optimiser.learning_rate == 1e-4
    assert optimiser.method == Adam(kind="adam", betas=(0.9, 0.999), eps=1e-6)
    assert optimiser.max_grad_norm == 4.0


_PARTS: tuple[type, ...] = (OptimiserConfig, RMSprop, Adam, KlSchedule, FixedSchedule, ComputeConfig)
_OWNERS = {key_of(kind, field.name): (kind, field.name) for kind in _PARTS for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("threads", 0, "integer of at least 1"),
        ("micro_batch", 0, "at least 1, or 'auto'"),
        ("micro_batch", "full", "at least 1, or 'auto'"),
        ("max_grad_norm", 0.0, "None to switch it off"),
        ("learning_rate", 0.0, "above 0"),
        ("adam_betas", (0.9, 1.0), r"in \[0, 1\)"),
        ("adam_betas", (0.9,), "two numbers"),
        ("adam_betas", [0.9, 0.999], "two numbers"),
        ("adam_eps", 0.0, "above 0"),
        ("weight_decay", -1e-4, "0 or more"),
        ("rmsprop_alpha", 1.0, r"in \[0, 1\)"),
        ("rmsprop_eps", 0.0, "above 0"),
        ("kl_target", 0.0, "above 0"),
        ("min_learning_rate", 0.0, "above 0"),
        ("max_learning_rate", True, "above 0"),
        ("optimiser", "lamb", "'adam', 'adamw'"),
        ("schedule", "cosine", "'cosine' is not two numbers .* choose 'constant', 'linear', 'kl', or points as"),
        ("schedule", "0:3e-4", "a schedule needs at least two points"),
        ("schedule", "0:3e-4,1e6", "'1e6' is not two numbers"),
        ("schedule", "0:3e-4,1e6:fast", "'1e6:fast' is not two numbers"),
        ("schedule", "0:3e-4;1e6:0", "'0:3e-4;1e6:0' is not two numbers"),
        ("schedule", "0:3e-4,0.5:0", "'0.5' is not a whole number of agent steps"),
        ("schedule", "0:3e-4,-5:0", "'-5' is not a whole number of agent steps"),
        ("schedule", "0:3e-4,inf:0", "'inf' is not a whole number of agent steps"),
        ("schedule", "0:3e-4,1e6:-1e-4", "'-1e-4' is not a finite number"),
        ("schedule", "0:nan,1e6:0", "'nan' is not a finite number"),
        ("schedule", "1e6:3e-4,1e5:0", "1e5 does not come after 1000000"),
        ("schedule", "0:0,1e6:0", "nothing would be learned"),
        ("precision", "fp16", "'auto', 'fp32', 'bf16'"),
        ("compile", "yes", "True, False, 'auto'"),
        ("channels_last", None, "True, False, 'auto'"),
        ("device", "gpu", "'cuda:<index>'"),
        ("device", "cpu:1", "'cuda:<index>'"),
    ],
)
def test_out_of_range_values_raise(field: str, value: Any, allowed: str) -> None:
    kind, name = _OWNERS[f"learner.{field}"]
    with pytest.raises(ValueError, match=rf"^learner\.{field}=.*{allowed}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1024, "minibatches": 4, "micro_batch": 257}, "more than the minibatch of 256 samples"),
        ({"schedule": "kl", "min_learning_rate": 1e-2, "max_learning_rate": 1e-3}, "swap or change"),
        ({"schedule": "kl", "learning_rate": 0.1}, "outside learner.min_learning_rate"),
        ({"compile": True, "advantage": "vtrace"}, "learner.compile=True with learner.advantage='vtrace'.*'gae'"),
    ],
)
def test_contradictions_raise(options: dict[str, Any], message: str) -> None:
    config = Config(env=EnvConfig(name="gym/CartPole-v1"))
    with pytest.raises(OptionError, match=message):
        apply(config, {f"learner.{name}": value for name, value in options.items()})


def test_is_frozen_and_refuses_unknown_names() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        OptimiserConfig().learning_rate = 2.0
    with pytest.raises(TypeError, match="learning_rat"):
        OptimiserConfig(learning_rat=1e-3)


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, rollmill.learning.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

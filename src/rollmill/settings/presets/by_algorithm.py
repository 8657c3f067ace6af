"""Settings of an algorithm, of lockstep and of an evaluation protocol, applied over those of a family.

The values of PPO and IMPALA are Cleanba's (Huang et al. 2023, arXiv:2310.00036, its tables of hyperparameters). The
network and the normalisers stay those of the family's preset.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import cast

from rollmill.algorithms.off_policy_config import OFF_POLICY_ALGORITHMS
from rollmill.settings.presets.families import Overrides
from rollmill.settings.presets.off_policy import off_policy_overrides

_PPO: Overrides = {
    "num_envs": 128,
    "rollout_length": 128,
    "learner.batch_size": 16_384,
    "learner.epochs": 4,
    "learner.minibatches": 4,
    "learner.discount": 0.99,
    "learner.advantage": "gae",
    "learner.gae_lambda": 0.95,
    "learner.normalise_advantages": True,
    "learner.clip_kind": "symmetric",
    "learner.clip_range": 0.1,
    "learner.value_clip": None,
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.01,
    "learner.max_grad_norm": 0.5,
    "learner.optimiser": "adam",
    "learner.adam_eps": 1e-5,
    "learner.learning_rate": 2.5e-4,
    "learner.schedule": "linear",
}

# Cleanba's losses are sums over a minibatch of 32 x 20 samples, ours are means: its gradient is 640 times ours. RMSProp
# divides by the root of the mean square, so the rate stays, while epsilon and the norm are divided by 640.
_SUMMED = 640
_IMPALA: Overrides = {
    "num_envs": 128,
    "rollout_length": 20,
    "learner.batch_size": 2_560,
    "learner.epochs": 1,
    "learner.minibatches": 4,
    "learner.discount": 0.99,
    "learner.advantage": "vtrace",
    "learner.vtrace_rho": 1.0,
    "learner.vtrace_c": 1.0,
    "learner.vtrace_lambda": 1.0,
    "learner.normalise_advantages": False,
    "learner.clip_kind": "none",
    "learner.value_clip": None,
    "learner.value_coef": 0.5,
    "learner.entropy_coef": 0.01,
    "learner.max_grad_norm": 40.0 / _SUMMED,
    "learner.optimiser": "rmsprop",
    "learner.rmsprop_alpha": 0.99,
    "learner.rmsprop_eps": 0.01 / _SUMMED,
    "learner.learning_rate": 6e-4,
    "learner.schedule": "linear",
}

# Cleanba's sizes are Atari's: batches of 16,384 samples leave a task of 300,000 steps 18 batches. Elsewhere PPO keeps
# the preset's own sizes and coefficients, and IMPALA has a quarter of Cleanba's environments.
_PPO_ELSEWHERE: Overrides = {"learner.advantage": "gae", "learner.clip_kind": "symmetric"}
_IMPALA_ELSEWHERE: Overrides = {**_IMPALA, "num_envs": 32, "learner.batch_size": 640}

# Environments that cannot be saved are rebuilt at each checkpoint, which cuts their episodes short.
_BETWEEN_CHECKPOINTS = 1_000_000


class UnknownChoiceError(ValueError):
    """No algorithm or protocol has this name, or none for this preset."""


ALGORITHMS: Mapping[str, Overrides] = {"ppo": _PPO, "impala": _IMPALA}
_ELSEWHERE: Mapping[str, Overrides] = {"ppo": _PPO_ELSEWHERE, "impala": _IMPALA_ELSEWHERE}


def _is_atari(preset: str) -> bool:
    family, _, name = preset.partition("/")
    if family != "envpool":
        return family == "atari"
    from rollmill.envs import envpool

    return envpool.kind(name) == "atari"


def algorithm_overrides(name: str, preset: str) -> Overrides:
    """The settings of an algorithm.

    Args:
        name: Its name, or the name of a registered algorithm; registered on-policy ones get the settings of PPO.
        preset: The preset to train.

    Raises:
        UnknownChoiceError: No algorithm has this name.
    """
    known = (*ALGORITHMS, *OFF_POLICY_ALGORITHMS)
    if not isinstance(name, str):
        raise UnknownChoiceError(f"algo={name!r}: give a name, one of {', '.join(known)}")
    if name in ALGORITHMS:
        return ALGORITHMS[name] if _is_atari(preset) else _ELSEWHERE[name]
    if name in OFF_POLICY_ALGORITHMS:
        return off_policy_overrides(name, preset)
    # The module imports torch, so it is there only where somebody has registered an algorithm.
    registry = sys.modules.get("rollmill.algorithms.registry")
    if registry is not None and registry.ALGORITHMS.is_registered(name):
        if registry.is_on_policy_algorithm(name):
            return {**algorithm_overrides("ppo", preset), "learner.algorithm": name}
        return off_policy_overrides(name, preset)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UnknownChoiceError(
        f"algo={name!r}: choose one of {', '.join(known)}{hint}; one of your own "
        "has to be registered by a module that --import names, or before this call"
    )


# Of a policy among several: it fills batches as the run's settings have them.
_OF_THE_RUN = ("learner.batch_size", "learner.minibatches")


def with_policies_algorithms(
    given: Mapping[str, object], preset: str, *, in_replay: bool, replaced: Mapping[str, object]
) -> dict[str, object]:
    """Put the settings of algorithms in the place of ``policy.NAME.algo``; other settings of the policies win.

    Args:
        given: Full keys and values.
        preset: The preset to train.
        in_replay: Whether the run learns from a replay.
        replaced: The preset's settings that the run's algorithm has replaced.

    Raises:
        UnknownChoiceError: No algorithm has this name, or it cannot be that of one policy.
    """
    asked = {key: value for key, value in given.items() if key.startswith("policy.") and key.endswith(".algo")}
    found: dict[str, object] = {}
    for key, name in asked.items():
        overrides = algorithm_overrides(cast("str", name), preset)
        if in_replay or "off_policy.algorithm" in overrides:
            raise UnknownChoiceError(
                f"{key}={name!r}: choose {', '.join(ALGORITHMS)} or an on-policy algorithm of your own, in a run "
                "without a replay; in a replay, give the policy settings off_policy.* of its own"
            )
        # Outside of Atari, PPO keeps the preset's own settings, and the run's algorithm may be another one.
        own = replaced if name == "ppo" and not _is_atari(preset) else {}
        found |= {
            f"{key.removesuffix('algo')}{setting}": value
            for setting, value in {"learner.algorithm": "ppo", **own, **overrides}.items()
            if setting.startswith("learner.") and setting not in _OF_THE_RUN
        }
    return {**found, **{key: value for key, value in given.items() if key not in asked}}


# Machado et al. (2018, arXiv:1709.06009), as Cleanba has it: sticky actions instead of no-ops at the start, all 18
# actions, no sign of a lost life, 30 minutes of play.
_MACHADO: Overrides = {
    "env.atari.sticky_actions": 0.25,
    "env.atari.full_action_space": True,
    "env.atari.life_loss": False,
    "env.atari.noop_max": 1,
    "env.atari.fire_reset": False,
    "env.atari.max_frames": 108_000,
}
PROTOCOLS: Mapping[str, Overrides] = {"machado": _MACHADO}


def protocol_overrides(name: str, preset: str) -> Overrides:
    """The settings of an evaluation protocol.

    Raises:
        UnknownChoiceError: No protocol has this name, or it does not apply to this preset.
    """
    if name not in PROTOCOLS:
        raise UnknownChoiceError(f"protocol={name!r}: choose {' or '.join(PROTOCOLS)}, or none for the preset's own")
    if not preset.startswith("atari/"):
        raise UnknownChoiceError(f"protocol={name!r} with {preset}: it is one of Atari games (atari/<game>)")
    return PROTOCOLS[name]


def lockstep_overrides(*, num_envs: int, rollout_length: int, minibatch_size: int) -> Overrides:
    """Settings with which a preset made for async runs in lockstep, where a batch is one rollout of every environment.

    Args:
        num_envs: Environments.
        rollout_length: T.
        minibatch_size: Samples of an SGD step, approximately kept.
    """
    num_envs, rollout_length = max(1, num_envs), max(1, rollout_length)  # Invalid values are rejected later.
    batch_size = num_envs * rollout_length
    minibatches = max(1, min(round(batch_size / minibatch_size), num_envs))
    # A minibatch of a recurrent network consists of whole trajectories.
    while num_envs % minibatches:
        minibatches -= 1
    return {
        "learner.batch_size": batch_size,
        "learner.minibatches": minibatches,
        "checkpoint.every_s": None,
        "checkpoint.every_steps": _BETWEEN_CHECKPOINTS,
    }


def pbt_overrides(*, in_replay: bool) -> Overrides:
    """The settings of population-based training, which changes numbers itself: none of them has a schedule."""
    constant: dict[str, object] = {"learner.schedule": "constant"}
    if not in_replay:
        constant |= {"learner.entropy_schedule": "constant", "learner.clip_schedule": "constant"}
    return constant

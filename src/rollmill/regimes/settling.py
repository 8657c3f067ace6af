"""Resolution of "auto" settings that affect results, once, when the environment is known.

The values are written to ``config.json``, so that a resumed run keeps them. Settings that affect speed only stay
"auto", because a run may be resumed on another machine.
"""

from __future__ import annotations

from collections.abc import Callable

from rollmill.algorithms.on_policy_config import OnPolicyConfig, auto_entropy_coef, auto_epochs
from rollmill.models.device import resolve_device
from rollmill.pbt.objectives import SCORE
from rollmill.scores import human_normalised
from rollmill.settings.config import Config
from rollmill.settings.regime_config import AsyncConfig
from rollmill.specs import EnvSpec
from rollmill.storage.replay_config import auto_capacity

# Number of parameters. Passes of smaller perceptrons are too short to measure reliably.
SMALL_NETWORK = 1_000_000
# Events of a policy in a run of population-based training.
_EVENTS = 20


def settled_settings(
    config: Config, spec: EnvSpec, num_parameters: int, measure_inference: Callable[[], str]
) -> dict[str, object]:
    """Return dotted key -> value for the settings that ``config`` leaves "auto".

    Args:
        config: The resolved configuration.
        spec: The environment.
        num_parameters: Parameters of the network.
        measure_inference: Returns the faster precision of a policy worker's forward pass; called only if a measurement
            decides.
    """
    from rollmill.models.precision import settled_precision

    settled = _of_policy(config, spec) | _of_pbt(config, spec)
    if config.in_replay and config.replay.capacity == "auto":
        settled["replay.capacity"] = max(auto_capacity(has_images=spec.has_images), 2 * config.replay.min_size)
    is_small = not spec.has_images and num_parameters <= SMALL_NETWORK
    if is_small and not config.in_replay:
        settled |= _on_the_cpu(config)
    has_rule = is_small or not isinstance(config.regime, AsyncConfig)

    def by_rule(device: str) -> str:
        return "fp32" if is_small else settled_precision(resolve_device(device), has_images=spec.has_images)

    if config.compute.precision == "auto" and has_rule:
        settled["learner.precision"] = by_rule(config.compute.device)
    # With fp64, policy workers use the network's own precision.
    if config.inference.precision == "auto" and config.compute.precision != "fp64":
        if has_rule or resolve_device(config.inference.device).type != "cpu":
            settled["inference.precision"] = by_rule(config.inference.device)
        else:
            settled["inference.precision"] = measure_inference()
    return settled


def _on_the_cpu(config: Config) -> dict[str, object]:
    """Return the settings that keep a small network of an on-policy run off a GPU.

    Its passes are shorter than the launches of their kernels: CartPole trained 2.9 times as fast on one core as on an
    H100 (docs/benchmarks.md). Without a GPU "auto" stays, for a resume on another machine.
    """
    devices = {"learner.device": config.compute.device, "inference.device": config.inference.device}
    return {key: "cpu" for key, name in devices.items() if name == "auto" and resolve_device(name).type != "cpu"}


def settled_policies(config: Config, spec: EnvSpec) -> dict[str, object]:
    """Return ``policy.NAME.KEY`` -> value for the settings that policies resolve otherwise than their run."""
    if not config.policy:
        return {}
    of_run = _of_policy(config, spec)
    return {
        f"policy.{name}.{key}": value
        for name, policy in zip(config.population.names, config.policies, strict=True)
        for key, value in _of_policy(policy, spec).items()
        if of_run.get(key) != value
    }


def _of_pbt(config: Config, spec: EnvSpec) -> dict[str, object]:
    """Return dotted key -> value for the settings of population-based training that ``config`` leaves "auto"."""
    if not config.population.pbt:
        return {}
    settled: dict[str, object] = {}
    every = config.pbt.every
    if every == "auto":
        every = max(1, config.total_steps // len(config.population.names) // _EVENTS)
        settled["pbt.every"] = every
    if config.pbt.start == "auto":
        settled["pbt.start"] = every
    if config.pbt.objective == "auto":
        settled["pbt.objective"] = "rating" if len(spec.agents) > 1 else SCORE if _have_scores(config) else "return"
    return settled


def _have_scores(config: Config) -> bool:
    """Whether there are several tasks with scores of humans."""
    tasks = config.env.tasks
    return bool(tasks) and all(human_normalised(task, 0.0) is not None for task in tasks)


def _of_policy(config: Config, spec: EnvSpec) -> dict[str, object]:
    """Return dotted key -> value for the settings of a policy that ``config`` leaves "auto"."""
    settled: dict[str, object] = {}
    if isinstance(algorithm := config.algorithm, OnPolicyConfig):
        if algorithm.epochs == "auto":
            settled["learner.epochs"] = auto_epochs(has_images=spec.has_images)
        if algorithm.entropy_coef == "auto":
            settled["learner.entropy_coef"] = auto_entropy_coef(has_real_numbers=spec.action.num_continuous > 0)
    if config.model.shared == "auto":
        settled["model.shared"] = config.model.shares_encoder(spec.observation)
    if config.model.scale_actions == "auto":
        settled["model.scale_actions"] = config.model.scales_actions(spec.action)
    return settled

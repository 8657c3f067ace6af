"""Measurement of the real model for :mod:`rollmill.learning.fast_path`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rollmill.algorithms.batches import OnPolicyBatch
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.ppo import PPO
from rollmill.learning.config import ComputeConfig
from rollmill.learning.fast_path import Candidate, FastPath, candidates_for, choose, undisturbed
from rollmill.models.actor_critic import ActorCritic
from rollmill.specs import ArraySpec, EnvSpec

_BUDGET_S = 5.0
# Memory limit for the activations of one backward pass.
GRAPH_BYTES = {"cpu": 2**30, "cuda": 2**33}
_PROBED_SAMPLES = 16


def choose_fast_path(
    algorithm: OnPolicyAlgorithm,
    spec: EnvSpec,
    config: ComputeConfig,
    *,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> FastPath:
    """Measure forward and backward passes of the real network and PPO's losses, on random data of the real shapes.

    Args:
        algorithm: The algorithm, on the learner's device; unchanged afterwards.
        spec: The environment, for the shapes.
        config: Settings; "auto" is measured.
        is_stop_wanted: True ends the measurement with the best candidate so far.
    """
    model = algorithm.acting
    device = next(model.parameters()).device
    # Compilation has not been benchmarked on a GPU, so it is never chosen automatically.
    open_config = replace(config, compile=False if config.compile == "auto" else config.compile)
    candidates = candidates_for(
        open_config,
        algorithm.config.minibatch_size,
        device,
        has_images=spec.has_images,
    )

    # Single samples, also for trajectories: one step of many rows costs a recurrent core as much as many steps of some
    # rows. Includes the losses, whose fixed cost dominates small parts of a small network.
    by_sample = PPO.over(model, replace(algorithm.config, advantage="gae"))
    by_sample.state_size = 0

    def make_step(candidate: Candidate) -> Callable[[], None]:
        batch = _blank_batch(by_sample, spec, candidate.micro_batch, device)
        loss = torch.compile(by_sample.loss, dynamic=True) if candidate.compile else by_sample.loss

        def step() -> None:
            model.set_channels_last(candidate.channels_last)
            model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=candidate.precision == "bf16"):
                value = loss(batch, None).value
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

        return step

    fast_path = choose(
        make_step, candidates, budget_s=_BUDGET_S, device=device, modules=[model], is_stop_wanted=is_stop_wanted
    )
    if not algorithm.needs_trajectories or config.micro_batch != "auto":
        return fast_path
    most = GRAPH_BYTES[device.type]
    if device.type == "cuda":
        most = min(most, torch.cuda.mem_get_info(device)[0] // 2)
    limit = most // activation_bytes(model, spec, device)
    return replace(fast_path, graph_samples=max(fast_path.micro_batch, limit))


class MeasuredPaths:
    """Measures once for all policies that compute alike.

    Args:
        is_stop_wanted: See :func:`choose_fast_path`.
    """

    def __init__(self, *, is_stop_wanted: Callable[[], bool]) -> None:
        self._is_stop_wanted = is_stop_wanted
        self._found: dict[tuple[object, ...], FastPath] = {}

    def choose(self, algorithm: OnPolicyAlgorithm, spec: EnvSpec, config: ComputeConfig) -> FastPath:
        """Return the result of :func:`choose_fast_path`."""
        key = (repr(algorithm.acting), algorithm.config.minibatch_size, algorithm.needs_trajectories, config)
        if key not in self._found:
            self._found[key] = choose_fast_path(algorithm, spec, config, is_stop_wanted=self._is_stop_wanted)
        return self._found[key]


def activation_bytes(model: ActorCritic, spec: EnvSpec, device: torch.device) -> int:
    """Return the bytes that one sample keeps for the backward pass, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with undisturbed(model), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(_observations(spec, _PROBED_SAMPLES, device))
    return max(1, sum(kept.values()) // _PROBED_SAMPLES)


def _observations(spec: EnvSpec, count: int, device: torch.device) -> dict[str, Tensor]:
    return {name: _random(item, (count,), device) for name, item in spec.observation.items()}


def _blank_batch(algorithm: OnPolicyAlgorithm, spec: EnvSpec, count: int, device: torch.device) -> OnPolicyBatch:
    """Build samples; all arrays but the observations are zeros."""
    action, zeros = spec.action, torch.zeros(count, device=device)
    return OnPolicyBatch(
        observation=_observations(spec, count, device),
        discrete=torch.zeros((count, action.num_discrete), dtype=torch.int32, device=device)
        if action.num_discrete
        else None,
        continuous=torch.zeros((count, action.num_continuous), device=device) if action.num_continuous else None,
        action_mask=torch.ones((count, action.mask_size), dtype=torch.bool, device=device)
        if spec.has_action_mask
        else None,
        log_prob=zeros,
        value=zeros,
        reward=zeros,
        advantage=zeros,
        return_=zeros,
        keep=torch.ones(count, dtype=torch.bool, device=device),
        terminated=None,
        cut=None,
        valid=None,
        reset=None,
        reset_steps=(),
        rnn_state=None,
        divisor=float(count),
        moments=None,
        coefficients=algorithm.coefficients({"clip_range": 0.5, "entropy_coef": algorithm.config.entropy_weight}),
    )


def _random(item: ArraySpec, leading: tuple[int, ...], device: torch.device) -> Tensor:
    """Build plausible observations: random bytes for images and integers, standard normal numbers otherwise."""
    shape = (*leading, *item.shape)
    dtype: torch.dtype = getattr(torch, item.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device)
    low, high = item.low, item.high
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0, 255 if item.dtype == "uint8" else 100
    if dtype is torch.bool:
        low, high = 0, 1
    # Drawn as int64, within its range.
    return torch.randint(int(low), int(min(high, 2**62)) + 1, shape, device=device).to(dtype)

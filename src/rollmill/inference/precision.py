"""Choice of a policy worker's precision by measuring the real network."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.lowered import can_be_lowered, fold_pixels, lower_weights, needs_autocast

_ROUNDS = 7


@torch.inference_mode()
def faster_precision(model: ActorCritic, observation: Mapping[str, Tensor], *, budget_s: float = 1.0) -> str:
    """Return the faster one of "fp32" and "bf16"; bf16 must be 10 % faster to justify its rounding.

    Both are timed alternately, so that a disturbance affects both; the fastest of several rounds counts. For bf16 the
    weights are cast in advance, as in the policy worker (:mod:`rollmill.models.lowered`).

    Args:
        model: The model, on its device.
        observation: A batch of typical size, by name.
        budget_s: Maximum seconds of the measurement.
    """
    device = next(model.parameters()).device
    state = model.initial_state(len(next(iter(observation.values()))), device)
    lowered, has_autocast = model, True
    if can_be_lowered(model):
        lowered = copy.deepcopy(model)
        lower_weights(lowered, torch.bfloat16)
        fold_pixels(lowered, torch.bfloat16)
        has_autocast = needs_autocast(lowered)
    best = {False: float("inf"), True: float("inf")}
    deadline = time.perf_counter() + budget_s
    for round_index in range(_ROUNDS):
        for bf16 in (False, True):
            started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16 and has_autocast):
                (lowered if bf16 else model)(observation, state, None)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if round_index:  # The first round builds kernels and caches.
                best[bf16] = min(best[bf16], time.perf_counter() - started)
        if round_index >= 2 and time.perf_counter() > deadline:
            break
    return "bf16" if best[True] < 0.9 * best[False] else "fp32"

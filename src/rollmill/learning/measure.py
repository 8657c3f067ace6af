"""The learner's own question to :mod:`rollmill.learning.fast_path`: how is *this* model trained fastest, here?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import Candidate, FastPath, candidates_for, choose
from rollmill.models.actor_critic import ActorCritic
from rollmill.specs import ArraySpec, EnvSpec

# Trajectories of a recurrent network are long steps, and the sizes are compared last.
_BUDGET_S = 5.0


def choose_fast_path(model: ActorCritic, spec: EnvSpec, config: LearnerConfig, *, rollout_length: int) -> FastPath:
    """Measures forward and backward passes of the real network on random data of the real shapes.

    Args:
        model: On the learner's device; unchanged afterwards.
        spec: Gives the shapes.
        config: What it fixes is kept, what it leaves "auto" is measured.
        rollout_length: T; micro-batches hold whole trajectories where time matters.

    Raises:
        ValueError: ``compile`` or ``cuda_graphs`` is demanded.
    """
    for name in ("compile", "cuda_graphs"):
        if getattr(config, name) is True:
            raise ValueError(
                f"learner.{name}=true: the update is not built for it yet, so it would change nothing; use 'auto' or "
                "false."
            )
    device = next(model.parameters()).device
    in_time = bool(model.state_size) or config.advantage == "vtrace"
    open_config = replace(
        config,
        # Neither is built into the update yet, so neither may be chosen.
        compile=False if config.compile == "auto" else config.compile,
        cuda_graphs=False if config.cuda_graphs == "auto" else config.cuda_graphs,
    )
    candidates = candidates_for(
        open_config,
        device,
        has_images=any(item.is_image for item in spec.observation.values()),
        trajectory_length=rollout_length if in_time else 1,
    )

    def make_step(candidate: Candidate) -> Callable[[], None]:
        steps = rollout_length if in_time else 1
        rows = max(1, candidate.micro_batch // steps)
        observation = {
            name: _random(item, (steps, rows) if in_time else (rows,), device)
            for name, item in spec.observation.items()
        }
        bf16 = candidate.precision == "bf16"

        def step() -> None:
            model.set_channels_last(candidate.channels_last)
            model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model.unroll(observation) if in_time else model(observation)
            loss = output.params.float().square().mean() + output.value.float().square().mean()
            loss.backward()

        return step

    return choose(make_step, candidates, budget_s=_BUDGET_S, device=device, modules=[model])


def _random(item: ArraySpec, leading: tuple[int, ...], device: torch.device) -> Tensor:
    """Plausible observations: random bytes for images and integers, standard normal numbers otherwise."""
    shape = (*leading, *item.shape)
    dtype: torch.dtype = getattr(torch, item.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device)
    high = 256 if item.dtype == "uint8" else int(min(item.high or 1, 2**15)) + 1
    if dtype is torch.bool:
        high = 2
    return torch.randint(0, high, shape, device=device).to(dtype)

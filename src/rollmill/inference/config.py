"""How policy workers collect and compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rollmill.models.device import check_device_name


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Policy workers.

    Attributes:
        num_workers: Policy worker processes; groups are bound to one of them, which keeps their recurrent state.
        device: "auto" takes CUDA when there is one. "cpu", "cuda", "cuda:1", ...
        precision: Of the forward pass: "fp32", "bf16", or "auto", which measures both first, or in lockstep takes bf16
            for networks that see pictures on devices with units for it.
        max_batch_rows: Rows of one forward pass at most; "auto" has no limit but what is ready.
        min_batch_groups: How many groups a worker waits for, within ``max_wait_us``, but never for more than half
            (rounded up) of those that are under way, nor while a rollout worker has no other group to step (one that
            another policy worker may be waiting with counts as stepped). 1: it takes what is ready. "auto": 2 on the
            CPU where a group has few rows, since larger batches cost less a row there; 1 otherwise.
        max_wait_us: Longest wait for more groups, in microseconds.
        groups_per_batch: In lockstep, how many groups, consecutive ones, make one batch, always the same ones: larger
            batches for a GPU, though a batch waits for the last of its groups. A hyperparameter, because floating-point
            results depend on a batch's shape. Async takes what is ready instead.
        threads: Torch threads of a policy worker on the CPU.
        step_timeout_s: A forward pass that takes longer is taken for hung and ends the run; so is a policy worker that
            shows no sign of life for as long (at least five seconds while it waits).
        random_actions: Draw actions uniformly instead of from the policy (Sample Factory, appendix A.1.2: measures
            throughput apart from what is learned). The forward pass is computed all the same.
        skip_policy: With ``random_actions``: do not compute the forward pass either. For measuring the sampler alone.
    """

    num_workers: int = 1
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    max_batch_rows: int | Literal["auto"] = "auto"
    min_batch_groups: int | Literal["auto"] = "auto"
    max_wait_us: int = 30_000
    groups_per_batch: int = 1
    threads: int = 1
    step_timeout_s: float = 300.0
    random_actions: bool = False
    skip_policy: bool = False

    def __post_init__(self) -> None:
        """Refuses values that no run could use."""
        for name in ("num_workers", "threads", "groups_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"inference.{name}={getattr(self, name)}: must be at least 1.")
        check_device_name("inference.device", self.device)
        if not 0 < self.step_timeout_s < math.inf:
            raise ValueError(f"inference.step_timeout_s={self.step_timeout_s}: must be positive (seconds).")
        if self.max_wait_us < 0:
            raise ValueError(f"inference.max_wait_us={self.max_wait_us}: must be 0 or more (microseconds).")
        for name in ("max_batch_rows", "min_batch_groups"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise ValueError(f"inference.{name}={getattr(self, name)}: must be at least 1, or 'auto'.")
        if self.skip_policy and not self.random_actions:
            raise ValueError(
                "inference.skip_policy=True needs inference.random_actions=True: without a forward pass "
                "there is no policy to draw actions from."
            )

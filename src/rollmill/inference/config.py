"""How policy workers collect and compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollmill.models.device import check_device_name
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, Checked, integer


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(Checked, section="inference"):
    """Policy workers.

    Attributes:
        num_workers: Policy worker processes; groups are bound to one of them, which keeps their recurrent state.
        device: "cpu", "cuda", "cuda:1", ... or "auto", which chooses as it does for ``learner.device``.
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
        step_timeout_s: A forward pass that takes longer counts as hung and ends the run; so is a policy worker that
            shows no sign of life for as long (at least five seconds while it waits).
        random_actions: Draw actions uniformly instead of from the policy (Sample Factory, appendix A.1.2: measures
            throughput apart from what is learned). The forward pass is computed all the same.
        skip_policy: With ``random_actions``: do not compute the forward pass either. For measuring the sampler alone.
    """

    num_workers: int = setting(1, integer(1))
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    max_batch_rows: int | Literal["auto"] = setting("auto", integer(1))
    min_batch_groups: int | Literal["auto"] = setting("auto", integer(1))
    max_wait_us: int = setting(30_000, integer(0), "(microseconds)")
    groups_per_batch: int = setting(1, integer(1))
    threads: int = setting(1, integer(1))
    step_timeout_s: float = setting(300.0, ABOVE_ZERO, "(seconds)")
    random_actions: bool = False
    skip_policy: bool = False

    def __post_init__(self) -> None:
        """Refuses values that no run could use."""
        super().__post_init__()
        check_device_name("inference.device", self.device)
        if self.skip_policy and not self.random_actions:
            raise ValueError(
                "inference.skip_policy=True needs inference.random_actions=True: without a forward pass "
                "there is no policy to draw actions from."
            )

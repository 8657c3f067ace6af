"""How an off-policy learner computes: what its settings leave open follows from a rule or from a measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.learning.blank_batches import blank_batch
from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import Candidate, FastPath, choose
from rollmill.learning.update import Update
from rollmill.models.memory_format import has_convolutions
from rollmill.models.precision import settled_precision
from rollmill.specs import EnvSpec
from rollmill.storage.replay_config import ReplayConfig

__all__ = ["choose_replay_path"]

_BUDGET_S = 2.5
# Of the measured batches: so many take some tenths of a second, where a batch of sequences may have thousands.
_MOST_OBSERVATIONS = 256


def choose_replay_path(
    algorithm: OffPolicyAlgorithm,
    spec: EnvSpec,
    config: LearnerConfig,
    replay: ReplayConfig,
    *,
    is_alone: bool = True,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> FastPath:
    """Choose how an off-policy learner computes, by rule or by measurement.

    Args:
        algorithm: On its device.
        spec: The environment. Pictures are learned from in bf16 on devices with units for it, unless ``config`` says
            otherwise.
        config: Precision, memory format. Which format of convolutions is faster on a CPU depends on the CPU and is
            measured, if it is left open, on a copy of the algorithm and batches of zeros; on a GPU, and with several
            ranks, it is channels_last.
        replay: What batches look like.
        is_alone: Whether there is one rank. Several add up gradients in the same order, or their parameters would drift
            apart: they have the same format.
        is_stop_wanted: True ends the measuring.
    """
    device, precision = next(algorithm.parameters()).device, config.precision
    if precision == "auto":
        precision = settled_precision(device, has_images=spec.has_images)
    channels_last = config.channels_last is not False
    if config.channels_last == "auto" and device.type == "cpu" and is_alone and has_convolutions(algorithm):
        channels_last = _is_faster_in_channels_last(algorithm, spec, config, replay, precision, is_stop_wanted)
    return FastPath(precision=precision, micro_batch=config.batch_size, channels_last=channels_last)


def _is_faster_in_channels_last(
    algorithm: OffPolicyAlgorithm,
    spec: EnvSpec,
    config: LearnerConfig,
    replay: ReplayConfig,
    precision: Literal["fp32", "bf16", "fp64"],
    is_stop_wanted: Callable[[], bool],
) -> bool:
    """Times gradients of all objectives in both formats; what only optimisers do is the same in either."""
    rows = max(1, min(config.batch_size, _MOST_OBSERVATIONS // (replay.window + 1)))

    def make_step(candidate: Candidate) -> Callable[[], None]:
        path = FastPath(**vars(candidate))
        update = Update(measured, config, path, generator=torch.Generator().manual_seed(0))

        def step() -> None:
            for index in range(len(update.objectives)):
                update.differentiate(index, batch)

        return step

    formats = (True, False)  # The usual one first, which is kept unless the other one is clearly faster.
    candidates = [Candidate(precision=precision, micro_batch=rows, channels_last=each) for each in formats]
    try:
        batch = blank_batch(spec, replay, rows, algorithm.state_size, torch.device("cpu"))
        measured = copy.deepcopy(algorithm)  # which may count its batches
        return choose(make_step, candidates, _BUDGET_S, is_stop_wanted=is_stop_wanted).channels_last
    except Exception:  # of the user's own: it cannot be copied, or learns nothing from zeros
        return True

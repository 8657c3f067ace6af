"""Choice of an off-policy learner's compute settings, by rule or by measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.learning.blank_batches import blank_batch
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.fast_path import Candidate, FastPath, choose
from rollmill.learning.update import Update
from rollmill.models.convolutions import has_convolutions
from rollmill.models.precision import settled_precision
from rollmill.specs import EnvSpec
from rollmill.storage.replay_config import ReplayConfig

_BUDGET_S = 2.5
# Steps in a measured batch: takes some tenths of a second, where real sequences may have thousands.
_MOST_OBSERVATIONS = 256


def choose_replay_path(
    algorithm: OffPolicyAlgorithm,
    spec: EnvSpec,
    config: ComputeConfig,
    replay: ReplayConfig,
    *,
    is_alone: bool = True,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> FastPath:
    """Choose an off-policy learner's compute settings.

    Args:
        algorithm: The algorithm, on its device.
        spec: The environment. Image inputs use bf16 on devices with bf16 units, unless ``config`` sets the precision.
        config: Precision and memory format. If the memory format is open, it is measured on a CPU, on a copy of the
            algorithm and batches of zeros; on a GPU, and with several ranks, it is channels_last.
        replay: The replay's configuration, for the format of batches.
        is_alone: Whether there is only one rank. Several ranks need the same format, because they must add gradients in
            the same order.
        is_stop_wanted: True ends the measurement.
    """
    device, precision = next(algorithm.parameters()).device, config.precision
    if precision == "auto":
        precision = settled_precision(device, has_images=spec.has_images)
    channels_last = config.channels_last is not False
    if config.channels_last == "auto" and device.type == "cpu" and is_alone and has_convolutions(algorithm):
        channels_last = _is_faster_in_channels_last(algorithm, spec, replay, precision, is_stop_wanted)
    return FastPath(precision=precision, micro_batch=algorithm.config.batch_size, channels_last=channels_last)


def _is_faster_in_channels_last(
    algorithm: OffPolicyAlgorithm,
    spec: EnvSpec,
    replay: ReplayConfig,
    precision: Literal["fp32", "bf16", "fp64"],
    is_stop_wanted: Callable[[], bool],
) -> bool:
    """Time the gradients of all objectives in both formats, without the optimisers' steps."""
    rows = max(1, min(algorithm.config.batch_size, _MOST_OBSERVATIONS // (replay.window + 1)))

    def make_step(candidate: Candidate) -> Callable[[], None]:
        path = FastPath(**vars(candidate))
        update = Update(measured, OptimiserConfig(), path, generator=torch.Generator().manual_seed(0))

        def step() -> None:
            for index in range(len(update.objectives)):
                update.differentiate(index, batch)

        return step

    formats = (True, False)  # the default first, kept unless the other is clearly faster
    candidates = [Candidate(precision=precision, micro_batch=rows, channels_last=each) for each in formats]
    try:
        batch = blank_batch(spec, replay, rows, algorithm.state_size, torch.device("cpu"))
        measured = copy.deepcopy(algorithm)  # it may count batches
        return choose(make_step, candidates, _BUDGET_S, is_stop_wanted=is_stop_wanted).channels_last
    except Exception:  # a user's algorithm may fail to copy or to learn from zeros
        return True

"""Compute settings by rule instead of measurement: equal on machines of one kind, whatever their load.

Precision, memory format and micro-batches change results by rounding, so in lockstep they follow from the network, the
configuration and the kind of device.
"""

from __future__ import annotations

from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.learning.config import ComputeConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.measure import GRAPH_BYTES, activation_bytes
from rollmill.models.precision import settled_precision
from rollmill.specs import EnvSpec

# Activations of this many images stay in a CPU's cache; without images larger parts cost less per sample.
_PICTURES_ON_CPU = 128
_SAMPLES = 4096


def settled_fast_path(algorithm: OnPolicyAlgorithm, spec: EnvSpec, config: ComputeConfig) -> FastPath:
    """Choose the settings that ``config`` leaves "auto", by rule.

    Args:
        algorithm: The algorithm, on the learner's device.
        spec: The environment.
        config: Values other than "auto" are kept.
    """
    model = algorithm.acting
    device = next(model.parameters()).device
    has_images = spec.has_images
    size = _PICTURES_ON_CPU if has_images and device.type == "cpu" else _SAMPLES
    micro_batch = min(size, algorithm.config.minibatch_size) if config.micro_batch == "auto" else config.micro_batch
    graph_samples = 0
    if algorithm.needs_trajectories and config.micro_batch == "auto":
        graph_samples = max(micro_batch, GRAPH_BYTES[device.type] // activation_bytes(model, spec, device))
    return FastPath(
        precision=settled_precision(device, has_images=has_images) if config.precision == "auto" else config.precision,
        micro_batch=micro_batch,
        channels_last=has_images if config.channels_last == "auto" else config.channels_last,
        compile=config.compile is True,
        graph_samples=graph_samples,
    )

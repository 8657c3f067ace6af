"""Estimate of a run's memory in addition to its slots, before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollmill.learning.config import RMSprop
from rollmill.runtime.arena import MemoryPart
from rollmill.runtime.machine import readable
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.specs import ArraySpec
from rollmill.storage.slots import Topology

if TYPE_CHECKING:
    from rollmill.regimes.setup import Probed

_BYTES = 4  # of a float32
# Batches of a learner in the replay regime: one in use, one ready, one being filled.
_BATCHES = 3


def private_parts(config: Config, probed: Probed, topology: Topology, ranks: Ranks) -> tuple[MemoryPart, ...]:
    """Return the minimum private host memory of a rank's processes.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        topology: The run's topology.
        ranks: The ranks, which share each batch in the replay regime.
    """
    parts = []
    numbers = probed.num_parameters
    if is_on_host(config.compute.device, probed):
        moments, num_learners = 1 if isinstance(config.optimiser.method, RMSprop) else 2, config.num_learners
        # Parameters and gradients in each learner (and the parameter server, with several), one optimiser state.
        copies = moments + (2 if num_learners == 1 else 1 + 2 * num_learners)
        parts.append(
            MemoryPart(
                f"the {numbers:,} parameters of the learner's network{probed.largest_parameter}, their gradients and "
                "the optimiser's state",
                numbers * _BYTES * copies,
            )
        )
    # Also on a GPU, published weights are assembled in host memory.
    parts.append(MemoryPart("the weights that the learner publishes", probed.weight_nbytes))
    if is_on_host(config.inference.device, probed) and not config.inference.skip_policy:
        versions = max(1, topology.slots_per_group)
        copies = topology.num_policy_workers * versions
        parts.append(MemoryPart(f"{copies} network(s) of the policy workers", copies * probed.weight_nbytes))
    if config.in_replay:
        steps = max(2, config.replay.sequence_length + 1)
        of_policies = " of all policies" if len(config.policies) > 1 else ""
        batch = sum(policy.off_policy.batch_size for policy in config.policies) // ranks.world_size
        parts.append(
            MemoryPart(
                f"{_BATCHES} batches{of_policies} of {batch:,} samples of {steps} observations each",
                _BATCHES * batch * steps * _nbytes(probed.spec.observation) * config.num_learners,
            )
        )
    elif config.compute.micro_batch != "auto":
        micro = config.compute.micro_batch
        parts.append(
            MemoryPart(
                f"the observations of a micro-batch of {micro:,} samples", micro * _nbytes(probed.spec.observation)
            )
        )
    return tuple(parts)


def of_local_ranks(parts: Sequence[MemoryPart], ranks: Ranks) -> tuple[MemoryPart, ...]:
    """Return the memory of all ranks on this machine.

    Args:
        parts: Memory of one rank.
        ranks: The ranks.
    """
    count = ranks.local_world_size
    if count == 1:
        return tuple(parts)
    return tuple(MemoryPart(f"{part.what}, of each of {count} ranks", part.nbytes * count) for part in parts)


def memory_advice(probed: Probed, rest: str) -> str:
    """Advise how to reduce memory.

    Args:
        probed: Sizes of the environment and the network.
        rest: Further advice.
    """
    observation = probed.spec.observation
    name, spec = max(observation.items(), key=lambda item: item[1].nbytes)
    return (
        f"One observation takes {readable(_nbytes(observation))} ({name!r} is {spec.dtype} of shape {spec.shape}): "
        "make it smaller, for example with gymnasium.wrappers.ResizeObservation; use a smaller network "
        f"(model.encoder, model.mlp_sizes); {rest}."
    )


def _nbytes(observation: Mapping[str, ArraySpec]) -> int:
    return sum(spec.nbytes for spec in observation.values())


def is_on_host(device: str, probed: Probed) -> bool:
    """Whether what a setting names is the host's CPU."""
    return device == "cpu" or (device == "auto" and not probed.has_cuda)

"""``rollmill bench sampler``: the cost of the data plane compared with environments alone, without policy and learner.

Both run throughout and take turns: one is paused while the other one is measured for half a second. The result is the
median ratio of these pairs, because the speed of a shared machine changes from second to second. This needs twice the
memory of the environments.
"""

from __future__ import annotations

from statistics import median

from rollmill.benchmarking.sampling import sampling_processes
from rollmill.benchmarking.simulation import simulating_processes
from rollmill.benchmarking.subject import Subject

_FEWEST_PAIRS = 3
_PAIR_S = 1.0


def run(subject: Subject, *, seconds: float, pairs: int | None = None) -> dict[str, object]:
    """Measure pairs of pure simulation and sampler with random actions.

    Args:
        subject: What to measure.
        seconds: For all pairs together; starting, and a quarter of a second before each half, come in addition.
        pairs: How many pairs; by default one for every second, and at least three.
    """
    if pairs is None:
        pairs = max(_FEWEST_PAIRS, int(seconds / _PAIR_S))
    config = subject.config().resolved()
    each = seconds / (2 * pairs)
    simulated: list[float] = []
    sampled: list[float] = []
    with simulating_processes(config) as simulation, sampling_processes(config) as sampler:
        turns = [(simulation, simulated), (sampler, sampled)]
        for _ in range(pairs):
            for stage, rates in turns:
                rates.append(stage.measure(each))
            turns.reverse()  # A machine that slows down would favour the one that always comes first.
    return {
        "preset": subject.preset,
        "seconds": seconds,
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "processes": config.rollout.num_workers,
        "pure_simulation_steps_per_second": median(simulated),
        "sampler_steps_per_second": median(sampled),
        "share_of_pure_simulation": median(b / a for a, b in zip(simulated, sampled, strict=True)),
        "pairs": [[a, b] for a, b in zip(simulated, sampled, strict=True)],
    }

"""``rollmill bench sim``: the speed of the environments alone."""

from __future__ import annotations

from rollmill.benchmarking.simulation import pure_simulation
from rollmill.benchmarking.subject import Subject


def run(subject: Subject, *, seconds: float) -> dict[str, object]:
    """Measure the environments with random actions, with one process for each core.

    Args:
        subject: What to measure.
        seconds: Length of the measurement.
    """
    config = subject.config().resolved()
    return {
        "preset": subject.preset,
        "seconds": seconds,
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "processes": config.rollout.num_workers,
        "pure_simulation_steps_per_second": pure_simulation(config, seconds=seconds),
    }

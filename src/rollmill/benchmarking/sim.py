"""``rollmill bench sim``: the speed of the environments alone."""

from __future__ import annotations

from collections.abc import Mapping

from rollmill.api import make_config
from rollmill.benchmarking.simulation import pure_simulation


def run(
    preset: str,
    *,
    seconds: float,
    overrides: Mapping[str, object] | None = None,
    algo: str | None = None,
    protocol: str | None = None,
) -> dict[str, object]:
    """Measure a preset's environments with random actions, with one process for each core.

    Args:
        preset: A preset's name.
        seconds: Length of the measurement.
        overrides: Settings that replace the preset's.
        algo: See :func:`rollmill.train`.
        protocol: See :func:`rollmill.train`.
    """
    config = make_config(preset, overrides, algo=algo, protocol=protocol).resolved()
    return {
        "preset": preset,
        "seconds": seconds,
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "processes": config.rollout.num_workers,
        "pure_simulation_steps_per_second": pure_simulation(config, seconds=seconds),
    }

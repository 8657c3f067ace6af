"""``rollmill bench sampler``: what the data plane costs beside the environments, without policy and learner.

Pure simulation and the sampler take turns, and the figure is the median over the pairs of their ratio: a shared machine
changes its speed from minute to minute, both halves of a pair alike. Behind each pair comes a round of the machine's
bound; it is for whole training, so a sampler without policy and learner may well be above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from rollmill.api import make_config
from rollmill.benchmarking.preset_bound import PresetBound
from rollmill.benchmarking.simulation import pure_simulation
from rollmill.regimes.sampling import sample

_FEWEST_PAIRS = 3
_PAIR_S = 16.0


def run(
    preset: str, *, seconds: float, overrides: Mapping[str, object] | None = None, pairs: int | None = None
) -> dict[str, object]:
    """Measures pairs of pure simulation and sampler with random actions.

    Args:
        preset: A preset's name.
        seconds: For all pairs together, starting not counted; the bound takes three fifths of that in addition.
        overrides: Settings over the preset's.
        pairs: How many pairs; by default one for every 16 seconds, and three at least.
    """
    if pairs is None:
        pairs = max(_FEWEST_PAIRS, int(seconds / _PAIR_S))
    config = make_config(preset, overrides).resolved()
    each = seconds / (2 * pairs)
    simulated, sampled = [], []
    with PresetBound(config, seconds=seconds, rounds=pairs) as bound:
        bound.choose_variants()
        for _ in range(pairs):
            simulated.append(pure_simulation(config, seconds=each))
            sampled.append(sample(config, seconds=each))
            bound.measure_round()
        share = bound.share(median(sampled), name="share_of_bound")
    return {
        "preset": preset,
        "seconds": seconds,
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "processes": config.rollout.num_workers,
        "pure_simulation_steps_per_second": median(simulated),
        "sampler_steps_per_second": median(sampled),
        "share_of_pure_simulation": median(b / a for a, b in zip(simulated, sampled, strict=True)),
        "pairs": [[a, b] for a, b in zip(simulated, sampled, strict=True)],
    } | share

"""Pure simulation and the sampler on machines with any number of cores."""

from __future__ import annotations

import pytest

from rollmill.benchmarking import preset_bound, sampler, sim, train
from rollmill.config import Config


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (3, 2), (12, 8), (24, 16), (128, 32)])
def test_as_many_processes_as_divide_the_environments(
    cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Config] = []

    def pure_simulation(config: Config, *, seconds: float) -> float:
        measured.append(config)
        return 1.0

    class BoundReachedError(Exception):
        pass

    def meter(*_: object, **__: object) -> None:
        raise BoundReachedError

    monkeypatch.setattr("rollmill.config.usable_cores", lambda: cores)
    for module in (sim, sampler):
        monkeypatch.setattr(module, "pure_simulation", pure_simulation)
    monkeypatch.setattr(sampler, "sample", pure_simulation)
    # With a setting of the environment's own: there is no bound to measure for that.
    own = {"env.kwargs": {"render_mode": None}}
    assert sim.run("gym/CartPole-v1", seconds=1.0, overrides=own)["processes"] == processes
    assert sampler.run("gym/CartPole-v1", seconds=1.0, pairs=1, overrides=own)["processes"] == processes
    monkeypatch.setattr(preset_bound, "BoundMeter", meter)
    # Whatever cannot be resolved is refused before anything is measured.
    with pytest.raises(BoundReachedError):
        train.run("gym/CartPole-v1", seconds=1.0)
    assert {config.num_envs for config in measured} == {64}

"""Pure simulation and the sampler: on machines with any number of cores, taking turns, and when a process fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.benchmarking import sampler, sim, train
from rollmill.benchmarking.sampling import sampling_processes
from rollmill.benchmarking.simulation import simulating_processes
from rollmill.benchmarking.stepping import SteppingProcesses, TooShortError
from rollmill.benchmarking.subject import Subject
from rollmill.envs.user_code import import_user_code
from rollmill.runtime import sweep
from rollmill.runtime.events import ProcessFailed
from rollmill.settings.config import Config

FAULTY = str(Path(__file__).parents[1] / "regimes" / "faulty_envs.py")
CARTPOLE = {"num_envs": 8, "rollout.num_workers": 2, "env.kwargs": {"render_mode": None}}


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (3, 2), (12, 8), (24, 16), (128, 32)])
def test_as_many_processes_as_divide_the_environments(
    cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Config] = []

    class Stage:
        def __init__(self, config: Config) -> None:
            measured.append(config)

        def __enter__(self) -> Stage:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def measure(self, seconds: float) -> float:
            return 1.0

    def pure_simulation(config: Config, *, seconds: float) -> float:
        return Stage(config).measure(seconds)

    class TrainingReachedError(Exception):
        pass

    def measure_training(*_: object) -> None:
        raise TrainingReachedError

    monkeypatch.setattr("rollmill.settings.config.usable_cores", lambda: cores)
    monkeypatch.setattr(sim, "pure_simulation", pure_simulation)
    monkeypatch.setattr(sampler, "simulating_processes", Stage)
    monkeypatch.setattr(sampler, "sampling_processes", Stage)
    monkeypatch.setattr(train, "pure_simulation", pure_simulation)
    monkeypatch.setattr(train, "measure_training", measure_training)
    assert sim.run(Subject("gym/CartPole-v1"), seconds=1.0)["processes"] == processes
    assert sampler.run(Subject("gym/CartPole-v1"), seconds=1.0, pairs=1)["processes"] == processes
    with pytest.raises(TrainingReachedError):
        train.run(Subject("gym/CartPole-v1"), seconds=1.0)
    assert len(measured) == 4
    assert {config.num_envs for config in measured} == {64}


@pytest.mark.slow
def test_pure_simulation_and_sampler_take_turns() -> None:
    found: Any = sampler.run(Subject("gym/CartPole-v1", CARTPOLE), seconds=0.6)
    assert len(found["pairs"]) == 3
    assert all(rate > 0 for pair in found["pairs"] for rate in pair)
    assert found["share_of_pure_simulation"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [simulating_processes, sampling_processes])
def test_who_is_not_measured_stands_still_and_ends_well(kind: Callable[[Config], SteppingProcesses]) -> None:
    config = rollmill.make_config("gym/CartPole-v1", CARTPOLE).resolved()
    with kind(config) as stage:
        assert stage.measure(0.2) > 0
        time.sleep(0.1)  # Until all of them are paused.
        before = stage.counts()
        time.sleep(0.3)
        assert stage.counts() == before
        assert stage.measure(0.2) > 0
        pids = stage.pids
    assert len(pids) >= 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("kind", "fault", "after", "words"),
    [
        (simulating_processes, "step", 10, "the step went wrong"),
        (simulating_processes, "exit 0", 10, "exited with code 0"),
        pytest.param(sampling_processes, "kill", 5_000, "SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_fails_ends_the_measurement(
    kind: Callable[[Config], SteppingProcesses], fault: str, after: int, words: str
) -> None:
    import_user_code(FAULTY)
    fault_kwargs = {"fault": fault, "after": after, "child": True}
    settings = CARTPOLE | {"env.imports": (FAULTY,), "env.kwargs": fault_kwargs}
    config = rollmill.make_config("test/walk", settings).resolved()
    stage = kind(config)
    with pytest.raises(ProcessFailed, match=words):
        measure_until_it_fails(stage)
    assert sweep.members(stage.supervisor.run_id) == []


@pytest.mark.slow
def test_a_slice_in_which_nothing_is_stepped_says_so() -> None:
    import_user_code(FAULTY)
    # A group of 100 steps of 10 ms takes a second.
    slow = {"num_envs": 200, "rollout.num_workers": 2, "envs_per_group": 100, "rollout.groups_per_worker": 1}
    settings = slow | {"env.imports": (FAULTY,), "env.kwargs": {"fault": "slow"}}
    config = rollmill.make_config("test/walk", settings).resolved()
    with pytest.raises(TooShortError, match="measure for longer"):
        measure_until_it_fails(simulating_processes(config))


def measure_until_it_fails(stage: SteppingProcesses) -> None:
    """At its beginning already, perhaps."""
    with stage:
        while True:
            stage.measure(0.2)

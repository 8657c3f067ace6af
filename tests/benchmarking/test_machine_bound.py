"""The machine's bound: its arithmetic, and its measurement with real processes and kernels that sleep."""

import os
import textwrap
import time
from pathlib import Path

import pytest
from benchmarks.machine_bound import __main__ as machine_bound
from benchmarks.machine_bound import bound as bound_module
from benchmarks.machine_bound.bound import KINDS, Bound, StageKernels, StageTimes, measure_bound
from benchmarks.machine_bound.frozen_kernels import Kernel, Variant
from benchmarks.machine_bound.kernel_processes import BoundError
from benchmarks.machine_bound.kernel_worker import find_fastest, time_kernel
from benchmarks.machine_bound.preset_bound import meter_for

import rollmill
from rollmill.benchmarking import train

SLEEPERS = """
    import os, time
    from benchmarks.machine_bound.frozen_kernels import Kernel, Variant

    def sleeper(milliseconds, samples=1):
        return lambda: Kernel(samples, lambda: time.sleep(milliseconds / 1e3))

    def env(milliseconds=2):
        return [Variant("only", "only", sleeper(milliseconds))]

    def inference():
        return [Variant("slow", "a", sleeper(30)), Variant("fast", "b", sleeper(2, samples=2))]

    def train(minibatch=1):
        return [Variant(f"minibatch {minibatch}", "only", sleeper(3))]

    def failing():
        def build():
            raise FloatingPointError("the kernel's own message")
        return [Variant("only", "only", build)]

    def dying():
        return [Variant("only", "only", lambda: os._exit(7))]
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageKernels:
    (tmp_path / "sleepers.py").write_text(textwrap.dedent(SLEEPERS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return StageKernels(env="sleepers:env", inference="sleepers:inference", train="sleepers:train")


def sleeper(milliseconds: float, samples: int, calls: list[str], name: str) -> Variant:
    def run() -> None:
        calls.append(name)
        time.sleep(milliseconds / 1e3)

    return Variant(name, name[0], lambda: Kernel(samples, run))


class TestArithmetic:
    BOUND = Bound(
        cores=(0, 1, 5),
        epochs=2,
        variants={},
        alone=StageTimes(t_env_us=300.0, t_inference_us=100.0, t_train_us=250.0),
        loaded=StageTimes(t_env_us=400.0, t_inference_us=200.0, t_train_us=450.0),
    )

    def test_cores_over_time_of_one_sample(self) -> None:
        assert self.BOUND.bound_steps_per_second == pytest.approx(3 / (300e-6 + 100e-6 + 2 * 250e-6))
        assert self.BOUND.bound_loaded_steps_per_second == pytest.approx(3 / (400e-6 + 200e-6 + 2 * 450e-6))


class TestTiming:
    def test_time_is_for_one_sample(self) -> None:
        calls: list[str] = []
        kernel = sleeper(10, 5, calls, "a").build()
        us = time_kernel(kernel, 0.05)
        assert 2 <= len(calls) <= 5
        assert us >= 10_000 / 5

    def test_finds_the_fastest_a_sample(self) -> None:
        calls: list[str] = []
        variants = [sleeper(20, 1, calls, "a1"), sleeper(40, 20, calls, "b1"), sleeper(40, 80, calls, "b2")]
        name, kernel = find_fastest(variants, 0.5)
        assert name == "b2"
        assert kernel.samples == 80

    def test_slow_families_are_left_out(self) -> None:
        calls: list[str] = []
        variants = [sleeper(1, 1, calls, "a1"), sleeper(50, 1, calls, "b1"), sleeper(1, 100, calls, "b2")]
        assert find_fastest(variants, 0.1)[0] == "a1"
        assert "b2" not in calls
        assert calls.count("b1") == 2


class TestMeasurement:
    def test_kernels_of_ones_own(self, kernels: StageKernels) -> None:
        result = measure_bound(kernels, 0.5, epochs=2, train_options={"minibatch": 64})
        assert result.variants == {"env": "only", "inference": "fast", "train": "minibatch 64"}
        assert result.cores == bound_module.available_cores()
        for times in (result.alone, result.loaded):
            assert times.t_env_us >= 2000
            assert times.t_inference_us >= 1000
            assert times.t_train_us >= 3000
        # A sleep is never shorter than asked for, so this holds on any machine.
        assert 0 < result.bound_steps_per_second <= len(result.cores) / 9e-3

    def test_options_and_cores(self, kernels: StageKernels) -> None:
        core = bound_module.available_cores()[-1]
        result = measure_bound(kernels, 0.1, cores=[core], env_options={"milliseconds": 20})
        assert result.cores == (core,)
        assert result.alone.t_env_us >= 20_000

    def test_a_failing_kernel_shows_its_traceback(self, kernels: StageKernels) -> None:
        failing = StageKernels(env="sleepers:failing", inference=kernels.inference, train=kernels.train)
        with pytest.raises(BoundError, match="FloatingPointError: the kernel's own message"):
            measure_bound(failing, 0.1)

    def test_a_dying_kernel_is_noticed(self, kernels: StageKernels) -> None:
        dying = StageKernels(env="sleepers:dying", inference=kernels.inference, train=kernels.train)
        with pytest.raises(BoundError, match=r"died \(7\)"):
            measure_bound(dying, 0.1)

    def test_refuses_what_it_cannot_measure(self) -> None:
        with pytest.raises(ValueError, match="no kernels for 'pinball': there are atari, vizdoom"):
            measure_bound("pinball", 1.0)
        with pytest.raises(ValueError, match="must be positive"):
            measure_bound("atari", 0.0)
        with pytest.raises(ValueError, match="must be positive"):
            measure_bound("atari", 1.0, epochs=0)
        with pytest.raises(ValueError, match="must be some of those that this process may use"):
            measure_bound("atari", 1.0, cores=[4096])
        with pytest.raises(ValueError, match="must be some of those"):
            measure_bound("atari", 1.0, cores=[])

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind(self, kind: str) -> None:
        assert measure_bound(kind, 2.0).bound_steps_per_second > 0


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("gym/CartPole-v1", {"model.core": "gru"}),
        ("atari/breakout", {"env.atari.frame_stack": 1}),
        ("vizdoom/basic", {"model.core_size": 256}),
        ("vizdoom/battle", {}),
        ("gym/Acrobot-v1", {}),
    ],
)
def test_no_bound_where_the_frozen_kernels_are_of_something_else(preset: str, overrides: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="there are no frozen kernels of"):
        meter_for(rollmill.make_config(preset, overrides).resolved())


@pytest.mark.slow
def test_training_beside_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_WARM_UP_S", 0.5)
    result = machine_bound.train("gym/CartPole-v1", seconds=2.0, overrides={"num_envs": 16})
    assert result["steps_per_second"] > 0
    bound = result["bound"]["bound_steps_per_second"]
    assert result["efficiency"] == result["steps_per_second"] / bound

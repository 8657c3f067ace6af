from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import nn

from rollmill.learning.config import ComputeConfig
from rollmill.learning.fast_path import Candidate, FastPath, FastPathError, candidates_for, choose, undisturbed


class FakeMachine:
    """A clock that only measured steps (and their construction) advance, by a cost model."""

    def __init__(self, us_per_sample: Callable[[Candidate], float], setup_s: Callable[[Candidate], float]) -> None:
        self.now = 100.0
        self.made: list[Candidate] = []
        self._us_per_sample = us_per_sample
        self._setup_s = setup_s

    def clock(self) -> float:
        return self.now

    def make_step(self, candidate: Candidate) -> Callable[[], None]:
        self.made.append(candidate)
        self.now += self._setup_s(candidate)

        def step() -> None:
            assert candidate is self.made[-1], "a candidate's step was called after another was created"
            self.now += 1e-6 * self._us_per_sample(candidate) * candidate.micro_batch

        return step


def pick(
    us_per_sample: Callable[[Candidate], float],
    candidates: tuple[Candidate, ...],
    budget_s: float = 1e9,
    setup_s: Callable[[Candidate], float] = lambda _: 0.0,
) -> tuple[FastPath, FakeMachine]:
    machine = FakeMachine(us_per_sample, setup_s)
    return choose(machine.make_step, candidates, budget_s, clock=machine.clock, timer=machine.clock), machine


def cpu_candidates(full: int = 1024, **options: object) -> tuple[Candidate, ...]:
    return candidates_for(ComputeConfig(**options), full, "cpu", has_images=True)


def measured_here(c: Candidate) -> float:
    """Cost model of the Nature CNN on one core: bf16, channels_last and small micro-batches are faster."""
    return (
        (380 if c.precision == "fp32" else 200) * (1 if c.channels_last else 1.5) * (1 + abs(c.micro_batch - 128) / 1e3)
    )


def test_open_candidates_on_cpu() -> None:
    candidates = cpu_candidates()
    assert len(candidates) == len(set(candidates)) == 2 * 2 * 5
    assert {c.micro_batch for c in candidates} == {64, 128, 256, 512, 1024}
    assert not any(c.compile for c in candidates)
    assert not any(c.channels_last for c in candidates_for(ComputeConfig(), 1024, "cpu", has_images=False))


def test_open_candidates_on_cuda_add_compilation() -> None:
    candidates = candidates_for(ComputeConfig(micro_batch=256), 1024, "cuda:1", has_images=False)
    assert {c.compile for c in candidates} == {False, True}
    assert {c.micro_batch for c in candidates} == {256}


def test_user_settings_fix_the_candidates() -> None:
    candidates = cpu_candidates(precision="fp32", channels_last=False, micro_batch=100)
    assert candidates == (Candidate(precision="fp32", micro_batch=100, channels_last=False),)
    config = ComputeConfig(micro_batch=256, compile=False)
    assert not any(c.compile for c in candidates_for(config, 1024, "cuda", has_images=False))


@pytest.mark.parametrize(
    ("batch_size", "minibatches", "has_images", "sizes"),
    [
        (1024, 4, True, {64, 128, 256}),
        (800, 1, True, {64, 128, 256, 512, 800}),
        (8192, 1, False, {64, 128, 256, 512, 8192}),
        (8192, 1, True, {64, 128, 256, 512}),
        (32, 1, True, {32}),
    ],
)
def test_micro_batches_that_are_compared(batch_size: int, minibatches: int, has_images: bool, sizes: set[int]) -> None:
    found = candidates_for(ComputeConfig(), batch_size // minibatches, "cpu", has_images=has_images)
    assert {c.micro_batch for c in found} == sizes


def test_stop_request_ends_the_measurement_after_one_candidate() -> None:
    path = choose(lambda candidate: lambda: None, cpu_candidates(), 1e9, is_stop_wanted=lambda: True)
    assert len(path.report) == 1


def test_a_single_candidate_is_not_measured() -> None:
    only = Candidate(precision="fp32", micro_batch=64, channels_last=False)
    path, machine = pick(measured_here, (only,))
    assert machine.made == []
    assert (path.precision, path.micro_batch, path.channels_last, path.report) == ("fp32", 64, False, ())
    assert path.describe() == "fp32, channels_first, micro-batch 64 (as configured)"


def test_no_candidates_is_an_error() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose(lambda _: lambda: None, [])


@pytest.mark.parametrize("fastest", cpu_candidates())
def test_finds_the_fastest_if_options_are_independent(fastest: Candidate) -> None:
    def us_per_sample(c: Candidate) -> float:
        slower = (c.precision != fastest.precision) + (c.channels_last != fastest.channels_last)
        return 100.0 * 1.5**slower * (1 + abs(c.micro_batch - fastest.micro_batch) / 500)

    path, _ = pick(us_per_sample, cpu_candidates())
    assert Candidate(**{field.name: getattr(path, field.name) for field in fields(Candidate)}) == fastest


def test_does_not_try_every_combination_and_reports_what_it_tried() -> None:
    path, machine = pick(measured_here, cpu_candidates())
    assert path.describe() == "bf16, channels_last, micro-batch 128: 200 us/sample (8 ways measured)"
    assert len(path.report) == len(set(machine.made)) == 8
    for row in path.report:
        assert row.us_per_sample == pytest.approx(measured_here(row.candidate))


def test_a_difference_too_small_to_matter_does_not_change_precision() -> None:
    path, _ = pick(lambda c: 100.0 if c.precision == "fp32" else 98.0, cpu_candidates())
    assert (path.precision, path.channels_last, path.micro_batch) == ("fp32", True, 64)
    path, _ = pick(lambda c: 100.0 if c.precision == "fp32" else 96.0, cpu_candidates())
    assert path.precision == "bf16"


def test_slow_candidates_are_abandoned_early() -> None:
    path, _ = pick(measured_here, cpu_candidates(micro_batch=128))
    assert [(row.candidate.precision, row.candidate.channels_last, row.repetitions) for row in path.report] == [
        ("fp32", True, 3),
        ("bf16", True, 3),
        ("fp32", False, 1),
        ("bf16", False, 1),
    ]


def test_one_slow_moment_does_not_decide() -> None:
    calls = 0

    def us_per_sample(c: Candidate) -> float:
        nonlocal calls
        calls += 1
        return measured_here(c) * (8 if calls % 5 == 0 else 1)

    path, _ = pick(us_per_sample, cpu_candidates())
    assert (path.precision, path.channels_last, path.micro_batch) == ("bf16", True, 128)


def test_respects_its_budget() -> None:
    # One candidate at 64 samples takes at least 4 x 64 x 10 ms = 2.6 s.
    path, machine = pick(lambda c: 50 * measured_here(c), cpu_candidates(), budget_s=2.0)
    assert len(machine.made) == 1
    assert path.report[0].candidate == machine.made[0]
    path, machine = pick(lambda c: 2 * measured_here(c), cpu_candidates(), budget_s=2.0)
    slowest = 1e-6 * 2 * measured_here(Candidate(precision="fp32", micro_batch=1024, channels_last=False)) * 1024 * 4
    assert machine.now - 100.0 < 2.0 + slowest
    assert (path.precision, path.channels_last) == ("bf16", True)


def cuda_candidates() -> tuple[Candidate, ...]:
    return candidates_for(ComputeConfig(), 1024, "cuda", has_images=True)


def test_compilation_is_tried_last_and_compilation_is_outside_the_budget() -> None:
    def us_per_sample(c: Candidate) -> float:
        return 0.1 * measured_here(c) * (0.8 if c.compile else 1)

    path, machine = pick(us_per_sample, cuda_candidates(), 2.0, setup_s=lambda c: 40.0 if c.compile else 0.0)
    assert path.compile
    assert path.describe().startswith("bf16, channels_last, micro-batch 128, compiled: 16 us/sample")
    assert sum(c.compile for c in machine.made) == 1, "compiled once only, because compilation is slow"


def test_failing_candidates_are_skipped_and_reported() -> None:
    machine = FakeMachine(measured_here, lambda _: 0.0)

    def make_step(candidate: Candidate) -> Callable[[], None]:
        if candidate.precision == "bf16":
            raise NotImplementedError("no bf16 here\nlong trace")
        if candidate.micro_batch == 512:

            def out_of_memory() -> None:
                raise MemoryError("cannot allocate")

            return out_of_memory
        return machine.make_step(candidate)

    path = choose(make_step, cpu_candidates(), 1e9, clock=machine.clock, timer=machine.clock)
    assert (path.precision, path.channels_last, path.micro_batch) == ("fp32", True, 128)
    failed = [row for row in path.report if row.us_per_sample is None]
    assert [row.failure for row in failed] == ["NotImplementedError: no bf16 here"] * 2 + [
        "MemoryError: cannot allocate"
    ]


def test_identical_failures_raise_the_models_error() -> None:
    def make_step(candidate: Candidate) -> Callable[[], None]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({candidate.micro_batch}x5 and 4x5)")

    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        choose(make_step, cpu_candidates())
    assert not isinstance(caught.value, FastPathError)
    assert str(caught.value).count("mat1") == 1


def test_different_failures_are_listed_once_each() -> None:
    def make_step(candidate: Candidate) -> Callable[[], None]:
        raise RuntimeError(f"no {candidate.precision} in {candidate.micro_batch}")

    with pytest.raises(FastPathError, match=r"failed with all settings tried.*no .*no .*fix the model") as caught:
        choose(make_step, cpu_candidates())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value).count("RuntimeError") == 2


def test_waiting_for_other_processes_does_not_count_on_one_cpu_thread() -> None:
    def make_step(candidate: Candidate) -> Callable[[], None]:
        def burn() -> None:
            began = time.thread_time()
            while time.thread_time() - began < (0.001 if candidate.precision == "bf16" else 0.004):
                pass
            if candidate.precision == "bf16":
                time.sleep(0.02)  # stands for another process on the core

        return burn

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        path = choose(make_step, cpu_candidates(micro_batch=64, channels_last=True))
    finally:
        torch.set_num_threads(threads)
    assert path.precision == "bf16"


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 4, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 5)
    )


def test_measuring_a_real_network_changes_nothing() -> None:
    network = small_network()
    parameters = list(network.parameters())
    flat = parameters[-1].data.view(-1)  # like a flat buffer of all weights: it must remain a view
    for p in parameters[:2]:
        p.grad = torch.ones_like(p)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    strides = [p.stride() for p in parameters]
    random_state = torch.get_rng_state()

    def make_step(candidate: Candidate) -> Callable[[], None]:
        layout = torch.channels_last if candidate.channels_last else torch.contiguous_format
        network.to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.randn(candidate.micro_batch, 4, 16, 16).to(memory_format=layout)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=candidate.precision == "bf16"):
                loss = network(images).square().mean()
            loss.backward()
            optimiser.step()

        return step

    path = choose(make_step, cpu_candidates(128), 0.5, modules=[network])
    assert len(path.report) >= 1
    assert all(row.us_per_sample is not None and row.us_per_sample > 0 for row in path.report)

    assert torch.equal(torch.get_rng_state(), random_state)
    assert [p.stride() for p in parameters] == strides
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(p.grad is not None and torch.equal(p.grad, torch.ones_like(p)) for p in parameters[:2])
    assert all(p.grad is None for p in parameters[2:])
    with torch.no_grad():
        parameters[-1].fill_(7.0)
    assert flat.tolist() == [7.0] * 5


def test_undisturbed_restores_after_an_exception_too() -> None:
    network = small_network()
    weight = next(network.parameters())
    before = weight.detach().clone()

    def spoil_and_fail() -> None:
        with undisturbed(network):
            weight.data.zero_()
            raise KeyError

    with pytest.raises(KeyError):
        spoil_and_fail()
    assert torch.equal(weight, before)

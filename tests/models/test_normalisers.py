"""Running statistics against NumPy over all samples at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollmill.envs.spaces import observation_specs
from rollmill.models import running_moments
from rollmill.models.normalisers import ObservationNormaliser
from rollmill.models.running_moments import RunningMeanStd
from rollmill.specs import TASK, ArraySpec


def test_merged_batches_equal_all_samples_at_once() -> None:
    rng = np.random.default_rng(0)
    statistics = RunningMeanStd((3,))
    kept = []
    for size in (1, 7, 500, 2):
        x = rng.normal(1e4, [0.01, 1.0, 100.0], size=(size, 4, 3)).astype(np.float32)
        valid = rng.random((size, 4)) > 0.3
        x[~valid] = np.nan
        statistics.update(torch.from_numpy(x), torch.from_numpy(valid))
        kept.append(x[valid])
    samples = np.concatenate(kept).astype(np.float64)
    assert statistics.count.item() == len(samples)
    np.testing.assert_allclose(statistics.mean.numpy(), samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.var.numpy(), samples.var(0), rtol=1e-8)
    np.testing.assert_allclose(statistics.scale.numpy(), (samples.var(0) + 1e-8) ** -0.5, rtol=1e-6)


def test_parts_of_a_batch_are_merged_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(57, 3, dtype=torch.float64) * 100 + 1e4
    x[5, 1] = torch.inf
    valid = torch.rand(57) > 0.3
    whole, parts = RunningMeanStd((3,)), RunningMeanStd((3,))
    for kept in (valid, None):
        whole.update(x, kept, True)
    monkeypatch.setattr(running_moments, "_PART_BYTES", 10 * 3 * 8)
    for kept in (valid, None):
        parts.update(x, kept, True)
    for mine, other in zip(whole.buffers(), parts.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=0.0)
    parts.update(x[:0])
    torch.testing.assert_close(parts.mean, whole.mean)


def test_without_a_mask_all_samples_count() -> None:
    x = torch.randn(5, 2)
    with_mask, without = RunningMeanStd((2,)), RunningMeanStd((2,))
    with_mask.update(x, torch.ones(5, dtype=torch.bool))
    without.update(x)
    for mine, theirs in zip(with_mask.buffers(), without.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_before_any_sample_it_changes_nothing() -> None:
    statistics = RunningMeanStd((2,))
    statistics.update(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.bool))
    x = torch.randn(4, 2)
    assert torch.equal(statistics.normalise(x), x)
    assert torch.equal(statistics.denormalise(x), x)


def test_a_small_batch_counts_after_a_large_history() -> None:
    statistics = RunningMeanStd(())
    statistics.update(torch.zeros(()).expand(1))
    statistics.count.fill_(2.0**40)
    statistics.update(torch.ones(1))
    assert statistics.count.item() == 2**40 + 1
    assert statistics.mean.item() == 1.0 / (2**40 + 1)


def test_denormalise_is_the_inverse() -> None:
    statistics = RunningMeanStd(())
    statistics.update(torch.randn(100) * 5 + 30)
    x = torch.randn(50) * 5 + 30
    torch.testing.assert_close(statistics.denormalise(statistics.normalise(x)), x, rtol=1e-5, atol=1e-4)
    assert abs(float(statistics.normalise(x).mean())) < 1.0


def test_statistics_travel_in_the_state_dict() -> None:
    one, two = RunningMeanStd((2,)), RunningMeanStd((2,))
    one.update(torch.randn(10, 2))
    two.load_state_dict(one.state_dict())
    x = torch.randn(3, 2)
    assert torch.equal(one.normalise(x), two.normalise(x))
    one.update(torch.ones(4, 2))
    two.update(torch.ones(4, 2))
    assert torch.equal(one.var, two.var)


OBSERVATION = {
    "image": ArraySpec(shape=(4, 36, 36), dtype="uint8"),
    "speed": ArraySpec(shape=(2,), dtype="float32"),
}


def test_images_pass_unchanged_and_the_rest_is_clipped() -> None:
    normaliser = ObservationNormaliser(OBSERVATION, images=False, clip=3.0)
    image = torch.zeros(50, 4, 36, 36, dtype=torch.uint8)
    speed = torch.randn(50, 2)
    normaliser.update({"image": image, "speed": speed})
    speed[0] = 1e6
    before = speed.clone()
    result = normaliser({"image": image, "speed": speed})
    assert result["image"] is image
    assert result["speed"][0].tolist() == [3.0, 3.0]
    assert float(result["speed"][1:].mean()) < 0.5
    assert torch.equal(speed, before)


def test_small_images_of_bytes_are_normalised_unless_they_are_categories() -> None:
    small = ArraySpec(shape=(10, 10, 3), dtype="uint8", low=0, high=255)
    stack = ArraySpec(shape=(4, 10, 10, 3), dtype="uint8", low=0, high=255)
    few = ArraySpec(shape=(7, 7, 3), dtype="uint8", low=0, high=10)
    normaliser = ObservationNormaliser({"small": small, "stack": stack, "few": few}, images=False, clip=10.0)
    assert normaliser.names == ("small", "stack")


def test_images_are_normalised_if_asked() -> None:
    normaliser = ObservationNormaliser(OBSERVATION, images=True, clip=10.0)
    image = torch.randint(0, 256, (64, 4, 36, 36), dtype=torch.uint8)
    observation = {"image": image, "speed": torch.randn(64, 2)}
    normaliser.update(observation)
    result = normaliser(observation)["image"]
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.mean(0), torch.zeros(4, 36, 36), rtol=0, atol=1e-4)
    torch.testing.assert_close(result.std(0, correction=0), torch.ones(4, 36, 36), rtol=0, atol=1e-4)


def test_empty_update_changes_nothing() -> None:
    statistics = RunningMeanStd((2,))
    statistics.update(torch.randn(5, 2))
    before = {name: value.clone() for name, value in statistics.state_dict().items()}
    statistics.update(torch.empty(0, 2))
    assert all(torch.equal(value, before[name]) for name, value in statistics.state_dict().items())


def test_choices_are_not_normalised() -> None:
    specs = {"die": ArraySpec(shape=(1,), dtype="int64", low=1, high=6), "x": ArraySpec(shape=(2,), dtype="float32")}
    normaliser = ObservationNormaliser(specs, images=False, clip=10.0)
    assert normaliser.names == ("x",)
    space = spaces.Dict(
        {"place": spaces.Discrete(4), "dice": spaces.MultiDiscrete([6, 6]), "x": spaces.Box(-9, 9, (2,))}
    )
    assert ObservationNormaliser(observation_specs(space), images=False, clip=10.0).names == ("x",)


def test_infinite_numbers_count_as_the_mean_so_far() -> None:
    spec = ArraySpec(shape=(2,), dtype="float32")
    normaliser = ObservationNormaliser({"obs": spec}, images=False, clip=10.0)
    normaliser.update({"obs": torch.tensor([[1.0, 10.0], [3.0, 10.0]])})
    normaliser.update({"obs": torch.tensor([[torch.inf, 11.0], [torch.nan, -torch.inf]])})
    (statistics,) = normaliser.statistics
    np.testing.assert_allclose(statistics.mean.numpy(), [2.0, 10.25])
    np.testing.assert_allclose(statistics.var.numpy(), [0.5, 3 / 16])
    seen = normaliser({"obs": torch.tensor([[torch.inf, 10.0]])})["obs"]
    assert seen[0, 0] == 10.0
    assert seen.isfinite().all()


def one_hot(tasks: np.ndarray, number: int = 3) -> torch.Tensor:
    return torch.eye(number)[torch.from_numpy(tasks)]


def test_statistics_of_tasks_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_moments, "_PART_BYTES", 10 * 2 * 8)
    rng = np.random.default_rng(1)
    together, alone = RunningMeanStd((2,), tasks=3), [RunningMeanStd((2,)) for _ in range(3)]
    for size in (8, 0, 50):
        # The last task has no samples yet.
        tasks = rng.integers(2, size=(size, 2))
        x = rng.normal(5.0, [0.01, 1.0], size=(size, 2, 2)) * np.array([1.0, 1000.0])[tasks][..., None]
        x[:1, :1] = np.inf
        valid = rng.random((size, 2)) > 0.2
        x[~valid] = np.nan
        samples, kept = torch.from_numpy(x), torch.from_numpy(valid)
        together.update(samples, kept, True, one_hot(tasks))
        for task, statistics in enumerate(alone):
            statistics.update(samples, kept & torch.from_numpy(tasks == task), True)
    for name, buffer in together.named_buffers():
        expected = torch.stack([getattr(statistics, name) for statistics in alone])
        torch.testing.assert_close(buffer.view(expected.shape), expected, rtol=1e-6, atol=0.0)
    which = rng.integers(3, size=(4, 5))
    x = torch.randn(4, 5, 2)
    seen = together.normalise(x, one_hot(which))
    for place in np.ndindex(4, 5):
        torch.testing.assert_close(seen[place], alone[which[place]].normalise(x[place]))


def test_statistics_of_numbers_of_tasks() -> None:
    statistics = RunningMeanStd((), tasks=3)
    statistics.update(torch.tensor([1.0, 5.0, 3.0]), None, False, one_hot(np.array([0, 2, 0])))
    assert statistics.mean.tolist() == [2.0, 0.0, 5.0]
    assert statistics.count.tolist() == [2.0, 0.0, 1.0]


def test_a_task_in_small_units_is_seen_as_well_as_one_in_large_units() -> None:
    specs = {
        "obs": ArraySpec(shape=(3,), dtype="float32"),
        TASK: ArraySpec(shape=(2,), dtype="float32", low=0, high=1, one_hot=True),
    }
    normaliser = ObservationNormaliser(specs, images=False, clip=10.0, tasks=2)
    assert normaliser.names == ("obs",)
    tasks = np.arange(400) % 2
    x = torch.randn(400, 3) * (one_hot(tasks, 2) @ torch.tensor([[1.0], [1000.0]]))
    x[tasks == 1, 2] = 0.0  # which the second task lacks
    observation = {"obs": x, TASK: one_hot(tasks, 2)}
    normaliser.update(observation)
    seen = normaliser(observation)
    assert torch.equal(seen[TASK], observation[TASK])
    for task in range(2):
        deviation = seen["obs"][tasks == task].std(0, correction=0)
        torch.testing.assert_close(deviation, torch.tensor([1.0, 1.0, float(task == 0)]), rtol=1e-3, atol=0.0)


def test_common_statistics_of_an_earlier_version_are_those_of_each_task() -> None:
    common, own = RunningMeanStd((2,)), RunningMeanStd((2,), tasks=2)
    x = torch.randn(10, 2) * 5 + 3
    common.update(x)
    own.load_state_dict(common.state_dict())
    torch.testing.assert_close(own.normalise(x, one_hot(np.arange(10) % 2, 2)), common.normalise(x))
    own.update(x[:1], None, True, one_hot(np.array([1]), 2))
    common.update(x[:1])
    torch.testing.assert_close(own.mean[1], common.mean)
    with pytest.raises(RuntimeError, match="size mismatch"):
        RunningMeanStd((2,), tasks=3).load_state_dict(own.state_dict())

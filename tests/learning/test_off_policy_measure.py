"""An off-policy learner's choice of memory format, on the real losses."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from rollmill.algorithms.base import Loss, Objective, OffPolicyAlgorithm
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import DQNConfig, off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning import off_policy_measure
from rollmill.learning.blank_batches import blank_batch
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.off_policy_measure import choose_replay_path
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.storage.replay_config import ReplayConfig

torch.set_num_threads(1)

OBSERVATION = {
    "image": ArraySpec(shape=(36, 36, 2), dtype="uint8"),
    "vector": ArraySpec(shape=(3,), dtype="float32"),
}
CHOICES = ActionSpec(heads=(CategoricalHead(n=3), CategoricalHead(n=2)), structure="multidiscrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,)),), structure="box")
TRANSITIONS = ReplayConfig()
SEQUENCES = ReplayConfig(sequence_length=4, burn_in=2, n_step=2)
CONFIG = ComputeConfig(precision="fp32")


def spec_of(action: ActionSpec, *, has_mask: bool = False) -> EnvSpec:
    return EnvSpec(name="pictures", observation=OBSERVATION, action=action, has_action_mask=has_mask)


def make(name: str, action: ActionSpec, core: str = "none", batch_size: int = 4) -> OffPolicyAlgorithm:
    torch.manual_seed(0)
    model = ModelConfig(mlp_sizes=(16,), core=core, core_size=8)  # type: ignore[arg-type]
    return make_algorithm(OBSERVATION, action, model, off_policy_config_of(name)(algorithm=name, batch_size=batch_size))


def updater_for(
    algorithm: OffPolicyAlgorithm, replay: ReplayConfig = TRANSITIONS, spec: EnvSpec | None = None, **settings: Any
) -> Update:
    config = ComputeConfig(**{"precision": "fp32", **settings})
    path = choose_replay_path(algorithm, spec or spec_of(CHOICES), config, replay)
    return Update(algorithm, OptimiserConfig(), path, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("name", "action", "core", "replay"),
    [
        ("dqn", CHOICES, "none", TRANSITIONS),
        ("dqn", CHOICES, "gru", SEQUENCES),
        ("sac", BOX, "none", TRANSITIONS),
        ("sac", ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete"), "none", TRANSITIONS),
        ("td3", BOX, "none", TRANSITIONS),
    ],
)
def test_measuring_changes_nothing(name: str, action: ActionSpec, core: str, replay: ReplayConfig) -> None:
    algorithm = make(name, action, core)
    before = {key: value.clone() for key, value in algorithm.state_dict().items()}
    random = torch.random.get_rng_state()
    path = choose_replay_path(algorithm, spec_of(action), CONFIG, replay)
    assert torch.equal(random, torch.random.get_rng_state())
    updater = Update(algorithm, OptimiserConfig(), path)
    for key, value in algorithm.state_dict().items():
        assert torch.equal(value, before[key]), key
    layout = torch.channels_last if updater.path.channels_last else torch.contiguous_format
    convolutions = [module for module in algorithm.modules() if isinstance(module, nn.Conv2d)]
    assert convolutions
    assert all(module.weight.is_contiguous(memory_format=layout) for module in convolutions)
    updater.step([blank_batch(spec_of(action), replay, 4, algorithm.state_size, torch.device("cpu"))])
    updater.check()


class Timed(DQN):
    """Is slow in one memory format."""

    slow_in: torch.memory_format | None = None
    calls: ClassVar[list[int]] = []
    failure = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.batches = 0
        self.asked = 0

    def objectives(self) -> Sequence[Objective]:
        self.asked += 1
        (objective,) = super().objectives()
        return [objective._replace(loss=partial(self._timed, objective.loss))]

    def _timed(self, loss: Any, batch: Any, generator: torch.Generator | None) -> Loss:
        self.batches += 1
        self.calls.append(len(batch.weight))
        if self.failure:
            raise RuntimeError(self.failure)
        begun = time.thread_time()
        convolution = next((module for module in self.modules() if isinstance(module, nn.Conv2d)), None)
        is_slow = (
            self.slow_in is not None
            and convolution is not None
            and convolution.weight.is_contiguous(memory_format=self.slow_in)
        )
        while is_slow and time.thread_time() - begun < 0.05:
            pass
        found: Loss = loss(batch, generator)
        return found


@pytest.fixture
def timed() -> type[Timed]:
    class Fresh(Timed):
        calls: ClassVar[list[int]] = []

    return Fresh


def made(kind: type[Timed], observation: dict[str, ArraySpec] | None = None, **model: Any) -> Timed:
    torch.manual_seed(0)
    config = ModelConfig(**{"mlp_sizes": (16,), **model})
    return kind(observation or OBSERVATION, CHOICES, config, DQNConfig(batch_size=4))


@pytest.mark.parametrize("slow_in", [torch.channels_last, torch.contiguous_format])
def test_selects_the_faster_format(timed: type[Timed], slow_in: torch.memory_format) -> None:
    timed.slow_in = slow_in
    assert updater_for(made(timed)).path.channels_last == (slow_in is torch.contiguous_format)
    assert timed.calls


def test_measuring_keeps_an_algorithms_counters(timed: type[Timed]) -> None:
    algorithm = made(timed)
    updater = updater_for(algorithm)
    assert timed.calls
    assert (algorithm.batches, algorithm.asked) == (0, 1)
    updater.step([blank_batch(spec_of(CHOICES), TRANSITIONS, 4, 0, torch.device("cpu"))])
    assert (algorithm.batches, algorithm.asked) == (1, 1)


@pytest.mark.parametrize("channels_last", [True, False])
def test_configured_values_are_not_measured(timed: type[Timed], channels_last: bool) -> None:
    assert updater_for(made(timed), channels_last=channels_last).path.channels_last == channels_last
    assert not timed.calls


def test_nothing_is_measured_without_convolutions(timed: type[Timed]) -> None:
    assert updater_for(made(timed, encoder="mlp")).path.channels_last
    vector = {"vector": OBSERVATION["vector"]}
    assert updater_for(
        made(timed, vector), spec=EnvSpec(name="", observation=vector, action=CHOICES)
    ).path.channels_last
    assert not timed.calls


def test_ranks_have_the_same_format_unmeasured(timed: type[Timed]) -> None:
    algorithm = made(timed)
    assert choose_replay_path(algorithm, spec_of(CHOICES), CONFIG, TRANSITIONS, is_alone=False).channels_last
    assert not timed.calls


def test_long_sequences_are_measured_with_a_small_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def recording(*given: Any) -> Any:
        rows.append(given[2])
        return blank_batch(*given)

    monkeypatch.setattr(off_policy_measure, "blank_batch", recording)
    replay = ReplayConfig(sequence_length=80, burn_in=40, n_step=5)
    updater_for(make("dqn", CHOICES, "lstm", 64), replay)
    updater_for(make("dqn", CHOICES, batch_size=64))
    assert rows == [2, 64]


@pytest.mark.parametrize("failure", ["loss", "copy"])
def test_measurement_failures_are_left_to_the_learner(timed: type[Timed], failure: str) -> None:
    algorithm = made(timed)
    if failure == "loss":
        timed.failure = "not with zeros"
    else:
        algorithm.lock = threading.Lock()  # type: ignore[assignment]  # which cannot be copied
    updater = updater_for(algorithm)
    assert updater.path.channels_last
    batch = blank_batch(spec_of(CHOICES), TRANSITIONS, 4, 0, torch.device("cpu"))
    if failure == "loss":
        with pytest.raises(RuntimeError, match="not with zeros"):
            updater.step([batch])
    else:
        updater.step([batch])


@pytest.mark.parametrize("replay", [TRANSITIONS, SEQUENCES])
def test_a_blank_batch_has_a_mask_where_the_environment_has_one(replay: ReplayConfig) -> None:
    algorithm = make("dqn", CHOICES, "gru" if replay.has_sequences else "none")
    spec = spec_of(CHOICES, has_mask=True)
    batch = blank_batch(spec, replay, 4, algorithm.state_size, torch.device("cpu"))
    assert batch.action_mask is not None
    assert bool(batch.action_mask.all())
    updater_for(algorithm, replay, spec).step([batch])

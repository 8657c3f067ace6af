"""An off-policy learner's choice of memory format, on the real losses."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.algorithms.config import OffPolicyConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.blank_batches import blank_batch
from rollmill.learning.config import LearnerConfig
from rollmill.learning.off_policy_measure import make_updater
from rollmill.learning.off_policy_update import OffPolicyUpdater
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
CONFIG = LearnerConfig(batch_size=4, precision="fp32")


def spec_of(action: ActionSpec, *, has_mask: bool = False) -> EnvSpec:
    return EnvSpec(name="pictures", observation=OBSERVATION, action=action, has_action_mask=has_mask)


def make(name: str, action: ActionSpec, core: str = "none") -> OffPolicyAlgorithm:
    torch.manual_seed(0)
    model = ModelConfig(mlp_sizes=(16,), core=core, core_size=8)  # type: ignore[arg-type]
    return make_algorithm(OBSERVATION, action, model, OffPolicyConfig(algorithm=name))


def updater_for(
    algorithm: OffPolicyAlgorithm, replay: ReplayConfig = TRANSITIONS, spec: EnvSpec | None = None, **settings: Any
) -> OffPolicyUpdater:
    config = LearnerConfig(**{"batch_size": 4, "precision": "fp32", **settings})
    generator = torch.Generator().manual_seed(3)
    return make_updater(algorithm, spec or spec_of(CHOICES), config, replay, generator=generator)


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
def test_measuring_leaves_everything_as_it_was(name: str, action: ActionSpec, core: str, replay: ReplayConfig) -> None:
    algorithm = make(name, action, core)
    before = {key: value.clone() for key, value in algorithm.state_dict().items()}
    random, generator = torch.random.get_rng_state(), torch.Generator().manual_seed(3)
    noise = generator.get_state()
    updater = make_updater(algorithm, spec_of(action), CONFIG, replay, generator=generator)
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.equal(noise, generator.get_state())
    for key, value in algorithm.state_dict().items():
        assert torch.equal(value, before[key]), key
    layout = torch.channels_last if updater.channels_last else torch.contiguous_format
    convolutions = [module for module in algorithm.modules() if isinstance(module, nn.Conv2d)]
    assert convolutions
    assert all(module.weight.is_contiguous(memory_format=layout) for module in convolutions)
    updater.step(blank_batch(spec_of(action), replay, 4, algorithm.state_size, torch.device("cpu")))
    updater.check()


class Watched(nn.Module):
    """A loss that takes its time in one memory format, and counts."""

    def __init__(self, algorithm: OffPolicyAlgorithm, slow_in: torch.memory_format | None, failure: str = "") -> None:
        super().__init__()
        self.calls, self._failure, self._slow_in = 0, failure, slow_in
        (objective,) = algorithm.objectives()
        convolution = next(module for module in algorithm.modules() if isinstance(module, nn.Conv2d))

        def loss(batch: Any, generator: torch.Generator | None) -> Any:
            self.calls += 1
            if self._failure:
                raise RuntimeError(self._failure)
            begun = time.thread_time()
            is_slow = slow_in is not None and convolution.weight.is_contiguous(memory_format=slow_in)
            while is_slow and time.thread_time() - begun < 0.05:
                pass
            return objective.loss(batch, generator)

        algorithm.objectives = lambda: [objective._replace(loss=loss)]  # type: ignore[method-assign]


@pytest.mark.parametrize("slow_in", [torch.channels_last, torch.contiguous_format])
def test_the_faster_format_is_taken(slow_in: torch.memory_format) -> None:
    algorithm = make("dqn", CHOICES)
    Watched(algorithm, slow_in)
    assert updater_for(algorithm).channels_last == (slow_in is torch.contiguous_format)


@pytest.mark.parametrize("channels_last", [True, False])
def test_what_is_configured_is_not_measured(channels_last: bool) -> None:
    algorithm = make("dqn", CHOICES)
    watched = Watched(algorithm, None)
    assert updater_for(algorithm, channels_last=channels_last).channels_last == channels_last
    assert not watched.calls


def test_without_pictures_there_is_nothing_to_measure() -> None:
    vector = {"vector": OBSERVATION["vector"]}
    algorithm = make_algorithm(vector, CHOICES, ModelConfig(mlp_sizes=(16,)), OffPolicyConfig(algorithm="dqn"))
    (objective,) = algorithm.objectives()

    def loss(*_: Tensor) -> None:
        raise AssertionError("was called")

    algorithm.objectives = lambda: [objective._replace(loss=loss)]  # type: ignore[method-assign,arg-type,return-value]
    spec = EnvSpec(name="numbers", observation=vector, action=CHOICES)
    assert updater_for(algorithm, spec=spec).channels_last


def test_a_loss_that_fails_is_left_to_fail_where_it_learns() -> None:
    algorithm = make("dqn", CHOICES)
    Watched(algorithm, None, failure="not with zeros")
    updater = updater_for(algorithm)
    assert updater.channels_last
    with pytest.raises(RuntimeError, match="not with zeros"):
        updater.step(blank_batch(spec_of(CHOICES), TRANSITIONS, 4, 0, torch.device("cpu")))


@pytest.mark.parametrize("replay", [TRANSITIONS, SEQUENCES])
def test_a_blank_batch_has_a_mask_where_the_environment_has_one(replay: ReplayConfig) -> None:
    algorithm = make("dqn", CHOICES, "gru" if replay.has_sequences else "none")
    spec = spec_of(CHOICES, has_mask=True)
    batch = blank_batch(spec, replay, 4, algorithm.state_size, torch.device("cpu"))
    assert batch.action_mask is not None
    assert bool(batch.action_mask.all())
    updater_for(algorithm, replay, spec).step(batch)

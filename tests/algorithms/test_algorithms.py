"""All algorithms: acting, objectives, targets and all kinds of specs."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rollmill.algorithms.base import Explore, OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

VECTOR = {"obs": ArraySpec(shape=(5,), dtype="float32")}
IMAGE = {"obs": ArraySpec(shape=(4, 36, 36), dtype="uint8", low=0, high=255)}
DICT = {"eye/left.0": ArraySpec(shape=(36, 36, 3), dtype="uint8", low=0, high=255), "speed": VECTOR["obs"]}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete")
MULTI = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=4)), structure="multidiscrete")
BOX = ActionSpec(heads=(BoxHead(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,)),), structure="box")
MODEL = ModelConfig(mlp_sizes=(16,), dense_size=16)
NAMED = [
    ("dqn", DISCRETE),
    ("dqn", MULTI),
    ("sac", DISCRETE),
    ("sac", MULTI),
    ("sac", BOX),
    ("td3", BOX),
    ("ddpg", BOX),
]
ROWS = 8

MakeBatch = Callable[..., TransitionBatch]


def build(
    name: str,
    action: ActionSpec,
    observation: dict[str, ArraySpec] = VECTOR,
    model: ModelConfig = MODEL,
    **changes: object,
) -> OffPolicyAlgorithm:
    torch.manual_seed(0)
    return make_algorithm(observation, action, model, off_policy_config_of(name)(algorithm=name, **changes))


def explore(seed: int = 0, steps: int = 10**6) -> Explore:
    reset = torch.zeros(ROWS, dtype=torch.bool)
    return Explore(steps, 10**6, torch.arange(ROWS), ROWS, reset, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("observation", [VECTOR, IMAGE, DICT], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("name", "action"), NAMED)
def test_acts_on_and_learns_from_every_spec(
    name: str, action: ActionSpec, shared: bool, observation: dict[str, ArraySpec], make_batch: MakeBatch
) -> None:
    algorithm = build(name, action, observation, replace(MODEL, shared=shared))
    updater = Update(algorithm, OptimiserConfig())
    batch = make_batch(observation, action, rows=ROWS)
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    for _ in range(2):
        step = updater.step([batch])
    updater.check()
    assert step is not None
    error = step.td_error
    assert error is not None
    assert error.shape == (ROWS,)
    assert not error.requires_grad
    is_target = {id(p) for _, target in algorithm.target_pairs() for p in target.parameters()}
    for path, p in algorithm.named_parameters():
        assert p.requires_grad == (id(p) not in is_target)
        if p.requires_grad and not path.endswith("bias"):
            assert not torch.equal(p, before[path]), f"{path} was not trained"
    for way in (None, explore(), explore(steps=0)):
        chosen = algorithm.act(batch.observation, None, way)
        if action.num_discrete:
            assert chosen.continuous is None
            assert chosen.discrete is not None
            assert chosen.discrete.dtype == torch.int32
            assert (chosen.discrete < torch.tensor(action.categorical_sizes)).all()
        else:
            assert chosen.discrete is None
            assert chosen.continuous is not None
            assert chosen.continuous.shape == (ROWS, 2)
            assert chosen.continuous.abs().max() <= 1.0


def of(action: object) -> Tensor:
    (tensor,) = (part for part in action if part is not None)  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(("name", "action"), NAMED)
def test_actions_depend_only_on_the_generator_and_acting_networks(
    name: str, action: ActionSpec, make_batch: MakeBatch
) -> None:
    learner, worker = build(name, action), build(name, action)
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    mirror = FlatState(worker.acting, alias=True)
    mirror.bytes[...] = FlatState(learner.acting, alias=False).bytes
    observation = make_batch(VECTOR, action).observation
    for way in (None, 3):
        both = [of(a.act(observation, None, None if way is None else explore(way))) for a in (learner, worker)]
        assert torch.equal(*both)
    assert not torch.equal(of(learner.act(observation, None, explore(1, 0))), of(learner.act(observation, None, None)))


@pytest.mark.parametrize("action", [DISCRETE, MULTI])
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_never_takes_forbidden_choices(name: str, action: ActionSpec, make_batch: MakeBatch) -> None:
    epsilon = {"epsilon_start": 0.5, "epsilon_end": 0.5} if name == "dqn" else {}
    algorithm = build(name, action, **epsilon)
    observation = make_batch(VECTOR, action).observation
    mask = torch.rand(ROWS, action.mask_size, generator=torch.Generator().manual_seed(5)) < 0.6
    for seed in range(20):
        for way in (None, explore(seed), explore(seed, 0)):
            choice = algorithm.act(observation, mask, way).discrete
            assert choice is not None
            for row in range(ROWS):
                for head, (allowed, chosen) in enumerate(
                    zip(mask[row].split(list(action.categorical_sizes)), choice[row].tolist(), strict=True)
                ):
                    assert allowed[chosen] or not allowed.any(), (row, head)


@pytest.mark.parametrize(("name", "action"), [("dqn", DISCRETE), ("dqn", MULTI), ("sac", DISCRETE), ("sac", MULTI)])
def test_targets_ignore_forbidden_next_choices(name: str, action: ActionSpec, make_batch: MakeBatch) -> None:
    algorithm = build(name, action, **({"double": True} if name == "dqn" else {}))
    batch = make_batch(VECTOR, action, masked=True)
    first = action.categorical_sizes[0]
    batch.next_action_mask[:, :first] = torch.arange(first) > 0  # type: ignore[index]
    objective = algorithm.objectives()[0]
    before = objective.loss(batch, None).td_error
    with torch.no_grad():  # choice 0 of the first head gets a high value in x_{t+k}, where it is forbidden
        for network in (algorithm.acting, *(target for _, target in algorithm.target_pairs())):
            for path, p in network.named_parameters():
                if path in ("advantage.bias_1", "mlp.bias_1") and network is not algorithm.acting:
                    p.view(-1, p.shape[-1])[:, 0] += 1000.0
    after = objective.loss(batch, None).td_error
    assert before is not None
    assert after is not None
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(("name", "action"), NAMED)
def test_target_networks_update_by_tau_and_share_modules(name: str, action: ActionSpec) -> None:
    algorithm = build(name, action, IMAGE, tau=0.25, target_update_every=3)
    with torch.no_grad():
        for p in algorithm.parameters():
            p.add_(torch.randn(p.shape))
    pairs = [
        (o, t)
        for online, target in algorithm.target_pairs()
        for o, t in zip(online.parameters(), target.parameters(), strict=True)
    ]
    before = [(o.clone(), t.clone()) for o, t in pairs]
    for step in (1, 2):
        algorithm.update_targets(step)
        assert all(torch.equal(t, old) for (_, t), (_, old) in zip(pairs, before, strict=True))
    algorithm.update_targets(3)
    for (online, target), (old_online, old_target) in zip(pairs, before, strict=True):
        assert torch.equal(online, old_online)
        torch.testing.assert_close(target, old_target + 0.25 * (old_online - old_target))


def test_tau_of_one_copies_targets_after_moving_and_copying_the_algorithm() -> None:
    algorithm = build("dqn", DISCRETE, target_update_every=1)
    algorithm.update_targets(1)
    for moved in (copy.deepcopy(algorithm), algorithm.double()):
        with torch.no_grad():
            for p in moved.acting.parameters():
                p.add_(1.0)
        moved.update_targets(1)
        (pair,) = moved.target_pairs()
        assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in pair), strict=True))


@pytest.mark.parametrize(
    ("name", "changes", "tau", "every", "delay"),
    [
        ("dqn", {}, 1.0, 2500, 1),
        ("dqn", {"tau": 0.01}, 0.01, 1, 1),
        ("ddpg", {}, 0.005, 1, 1),
        ("td3", {}, 0.005, 2, 2),
        ("td3", {"policy_delay": 3, "target_update_every": 1}, 0.005, 1, 3),
        ("sac", {}, 0.005, 1, 1),
    ],
)
def test_defaults_of_none(name: str, changes: dict[str, object], tau: float, every: int, delay: int) -> None:
    algorithm = build(name, DISCRETE if name == "dqn" else BOX, **changes)
    assert (algorithm.tau, algorithm.target_update_every, algorithm.policy_delay) == (tau, every, delay)


@pytest.mark.parametrize(("name", "action"), NAMED)
def test_state_dicts_round_trip(name: str, action: ActionSpec, make_batch: MakeBatch) -> None:
    batch = make_batch(VECTOR, action)
    first, second = build(name, action, tau=0.1), build(name, action, tau=0.1)
    updaters = [Update(a, OptimiserConfig(), generator=torch.Generator().manual_seed(1)) for a in (first, second)]
    for _ in range(3):
        updaters[0].step([batch])
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "updater": updaters[0].state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.load_state_dict(saved["model"])
    updaters[1].load_state_dict(saved["updater"])
    assert updaters[1].sgd_steps == 3
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    for updater, generator in zip(updaters, generators, strict=True):
        updater._generator = generator
        updater.step([batch])
        updater.step([batch])
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)

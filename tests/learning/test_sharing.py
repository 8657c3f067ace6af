"""Parallel learners: results through shared memory equal those of one learner."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms import test_recurrent_dqn as sequences
from torch import nn

from rollmill.algorithms.base import Loss, Objective, OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import DQNConfig, off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.sharing import FlatGradients, NetworkRing, shared_sizes
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead
from rollmill.storage import weights

PICTURE = {"obs": ArraySpec(shape=(36, 36, 2), dtype="uint8")}
VECTOR = {"obs": ArraySpec(shape=(5,), dtype="float32")}
CHOICE = ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,)),), structure="box")
CASES = [("dqn", PICTURE, CHOICE), ("dqn", VECTOR, CHOICE), ("sac", VECTOR, BOX), ("td3", VECTOR, BOX)]


def make(name, observation, action, seed=0):
    torch.manual_seed(seed)
    return make_algorithm(
        observation, action, ModelConfig(mlp_sizes=(16,)), off_policy_config_of(name)(algorithm=name, tau=0.1)
    )


def batch_of(observation, action, rows=8, seed=1):
    random = np.random.default_rng(seed)

    def shown():
        ((name, spec),) = observation.items()
        values = (
            random.integers(0, 255, (rows, *spec.shape)) if spec.is_image else random.normal(size=(rows, *spec.shape))
        )
        return {name: torch.from_numpy(values.astype(spec.dtype))}

    discrete = torch.from_numpy(random.integers(3, size=(rows, 1)).astype(np.int32)) if action is CHOICE else None
    continuous = torch.from_numpy(random.uniform(-1, 1, (rows, 2)).astype(np.float32)) if action is BOX else None
    reward = torch.from_numpy(random.normal(size=rows).astype(np.float32))
    ones = torch.ones(rows)
    return TransitionBatch(shown(), discrete, continuous, reward, 0.9 * ones, shown(), None, None, ones)


def updater_of(algorithm):
    return Update(algorithm, OptimiserConfig(max_grad_norm=0.5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "observation", "action"), CASES)
def test_a_gradient_through_shared_memory_gives_the_same_step(name, observation, action):
    one = make(name, observation, action)
    server, learner = copy.deepcopy(one), copy.deepcopy(one)
    batch = batch_of(observation, action)
    alone, serving, learning = updater_of(one), updater_of(server), updater_of(learner)
    values = np.full(shared_sizes(one).gradient, np.nan, np.float32)
    sent, received = FlatGradients(learning, values), FlatGradients(serving, values)
    # Objectives of one step share weights, so only the first one is compared.
    alone.differentiate(0, batch)
    alone.apply([0], {})
    learning.differentiate(0, batch)
    sent.put(0)
    received.take(0)
    serving.apply([0], {})
    for (label, expected), found in zip(one.state_dict().items(), server.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=label)


class FourAxes(OffPolicyAlgorithm):
    """Has parameters of four axes, not all of which are usually channels_last."""

    def __init__(self):
        super().__init__(PICTURE, CHOICE, ModelConfig(), DQNConfig())
        self.acting = nn.ModuleDict({"down": nn.Conv2d(2, 3, 3), "up": nn.ConvTranspose2d(3, 2, 4)})
        self.acting.register_parameter("raw", nn.Parameter(torch.randn(2, 3, 5, 7)))

    def act(self, observation, action_mask, explore):
        raise NotImplementedError

    def objectives(self):
        return [Objective("all", list(self.parameters()), self._loss, None)]

    def target_pairs(self):
        return []

    def _loss(self, batch, generator):
        picture = self.acting["up"](self.acting["down"](batch))
        weights = torch.arange(self.acting.raw.numel()).view(self.acting.raw.shape)
        return Loss((picture**2).mean() + (weights * self.acting.raw).sum(), None, {})


def attached(server, learner):
    """Attach a learner as in a run: its networks are views of the ring."""
    sizes, layout = shared_sizes(server), ArenaLayout()
    for ring, nbytes in sizes.rings.items():
        weights.add_to_layout(layout, nbytes=nbytes, ring=ring)
    arena = Arena.create(layout)
    for ring in sizes.rings:
        weights.WeightStore(arena, ring=ring, create=True)
    return NetworkRing(arena, server), NetworkRing(arena, learner)


def test_restored_moments_have_the_layout_of_shared_parameters():
    torch.manual_seed(0)
    one = FourAxes()
    alone = Update(one, OptimiserConfig())
    pictures = torch.randn(4, 2, 8, 8)
    alone.step([pictures])
    server = copy.deepcopy(one)
    serving = Update(server, OptimiserConfig())
    serving.load_state_dict(copy.deepcopy(alone.state_dict()))
    attached(server, copy.deepcopy(server))
    serving.lay_out_moments()
    alone.step([torch.zeros(4, 2, 8, 8)])
    serving.step([torch.zeros(4, 2, 8, 8)])
    for (label, expected), found in zip(one.state_dict().items(), server.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, msg=lambda text, label=label: f"{label}: {text}")


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("kind", ["dqn", "own"])
def test_a_gradient_reaches_parameters_of_any_memory_format(kind, channels_last):
    torch.manual_seed(0)
    one = make("dqn", PICTURE, CHOICE) if kind == "dqn" else FourAxes()
    batch = batch_of(PICTURE, CHOICE) if kind == "dqn" else torch.randn(4, 2, 8, 8)
    server, learner = copy.deepcopy(one), copy.deepcopy(one)
    config = OptimiserConfig(max_grad_norm=0.5)
    publishing, reading = attached(server, learner)
    alone, serving, learning = (
        Update(algorithm, config, replace(PLAIN, channels_last=channels_last)) for algorithm in (one, server, learner)
    )
    values = np.full(shared_sizes(server).gradient, np.nan, np.float32)
    sent, received = FlatGradients(learning, values), FlatGradients(serving, values)
    for version in range(3):
        publishing.publish(version, targets=True)
        reading.read()
        for parameter, published in zip(learner.parameters(), server.parameters(), strict=True):
            assert torch.equal(parameter, published)
        alone.step([batch])
        learning.differentiate(0, batch)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        convolutions = [module for module in learner.modules() if isinstance(module, nn.Conv2d)]
        assert convolutions
        assert all(module.weight.is_contiguous(memory_format=layout) for module in convolutions)
        sent.put(0)
        received.take(0)
        expected = [p.grad.clone() for p in learning.objectives[0].parameters]
        for parameter, gradient in zip(serving.objectives[0].parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)
        serving.apply([0], {})
        for parameter, single in zip(server.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(parameter, single, rtol=1e-5, atol=1e-6)


class Ranks:
    """One of two ranks; the other has left its gradients and sample counts already."""

    rank, world_size = 0, 2

    def __init__(self):
        self.others = []

    def sum_gradients(self, parameters, statistics):
        gradients, number = self.others.pop(0)
        for parameter, other in zip(parameters, gradients, strict=True):
            parameter.grad += number * other
        return statistics + number


@pytest.mark.parametrize(("name", "observation", "action"), CASES[:2])
def test_two_ranks_equal_one_learner_with_the_whole_batch(name, observation, action):
    whole = batch_of(observation, action)

    def half(part):
        return TransitionBatch(
            *(
                None if x is None else {k: v[part] for k, v in x.items()} if isinstance(x, dict) else x[part]
                for x in whole
            )
        )

    check_two_ranks(make(name, observation, action), whole, half(slice(0, 4)), half(slice(4, 8)))


def test_two_ranks_with_sequences_equal_one_learner_with_all_valid_steps():
    one = sequences.build()
    whole = sequences.make_batch(sequences.happenings(0), sequences.DISCRETE, one.state_size)
    whole = whole._replace(
        observation={"obs": whole.observation["obs"].double()},
        **{name: getattr(whole, name).double() for name in ("reward", "discount", "rnn_state", "weight")},
    )

    def half(part):
        of_rows = ("discrete", "reward", "discount", "then", "valid", "reset")
        return whole._replace(
            **{name: getattr(whole, name)[:, part] for name in of_rows},
            observation={"obs": whole.observation["obs"][:, part]},
            weight=whole.weight[part],
            rnn_state=whole.rnn_state[part],
            reset_steps=torch.nonzero(whole.reset[:, part].any(1)).flatten().tolist(),
        )

    halves = half(slice(0, 3)), half(slice(3, 6))
    assert halves[0].valid.sum() != halves[1].valid.sum()
    check_two_ranks(one, whole, *halves)


def check_two_ranks(one, whole, *halves):
    first, second = copy.deepcopy(one.double()), copy.deepcopy(one)
    ranks = Ranks()
    config = OptimiserConfig(max_grad_norm=0.1)
    double = replace(PLAIN, precision="fp64")
    other = Update(second, config, double)
    other.differentiate(0, halves[1])
    number = halves[1].valid.sum() if hasattr(whole, "valid") else 1
    ranks.others.append(([p.grad.clone() for p in other.objectives[0].parameters], number))
    Update(one, config, double).step([whole])
    Update(first, config, double, collective=ranks).step([halves[0]])
    for (label, expected), found in zip(one.state_dict().items(), first.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=label)


@pytest.mark.parametrize(("name", "observation", "action"), CASES)
def test_a_learner_reads_all_networks(name, observation, action):
    server, learner = make(name, observation, action), make(name, observation, action, seed=5)
    updater, _ = updater_of(server), updater_of(learner)
    publishing, reading = attached(server, learner)
    for version in range(3):
        publishing.publish(version, targets=True)
        assert reading.newest == version
        assert reading.read() == version
        for (label, expected), found in zip(server.state_dict().items(), learner.state_dict().values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=label)
        updater.step([batch_of(observation, action, seed=version)])


def test_objectives_that_share_parameters_raise():
    algorithm = make("sac", VECTOR, BOX)
    objectives = list(algorithm.objectives())
    algorithm.objectives = lambda: [*objectives, objectives[0]]
    with pytest.raises(ValueError, match="share parameters"):
        shared_sizes(algorithm)

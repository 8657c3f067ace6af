"""Update: small decision processes with a known optimum, and the results of single SGD steps."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import DQNConfig, SACConfig, off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.collective import Alone
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import centred_layers
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

torch.set_num_threads(1)

STATES, GAMMA = 4, 0.8
OBSERVATION = {"obs": ArraySpec(shape=(STATES,), dtype="float32")}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete")
MULTI = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=3)), structure="multidiscrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")
MODEL = ModelConfig(mlp_sizes=(32, 32))


def batch_of(
    states: list[int], following: list[int], reward: list[float], is_last: list[bool], **actions: Tensor
) -> TransitionBatch:
    eye = torch.eye(STATES)
    return TransitionBatch(
        observation={"obs": eye[states]},
        discrete=actions.get("discrete"),
        continuous=actions.get("continuous"),
        reward=torch.tensor(reward),
        discount=torch.tensor([0.0 if last else GAMMA for last in is_last]),
        next_observation={"obs": eye[following]},
        action_mask=None,
        next_action_mask=None,
        weight=torch.ones(len(states)),
    )


def corridor() -> TransitionBatch:
    """Every state and action, left (0) or right (1); the right end gives 1 and terminates, the left end gives 0.1."""
    steps = [(s, a, max(0, s - 1) if a == 0 else s + 1) for s in range(STATES) for a in range(2)]
    is_last = [following == STATES for _, _, following in steps]
    reward = [1.0 if last else 0.1 * (s == a == 0) for (s, a, _), last in zip(steps, is_last, strict=True)]
    return batch_of(
        [s for s, _, _ in steps],
        [min(f, STATES - 1) for _, _, f in steps],
        reward,
        is_last,
        discrete=torch.tensor([[a] for _, a, _ in steps], dtype=torch.int32),
    )


def optimal_values(batch: TransitionBatch, temperature: float = 0.0) -> np.ndarray:
    """Compute Q* of the corridor by (soft) value iteration, ``[STATES, 2]``."""
    following = batch.next_observation["obs"].argmax(-1).numpy()
    q = np.zeros((STATES, 2))
    for _ in range(200):
        value = q.max(1) if temperature == 0.0 else temperature * np.log(np.exp(q / temperature).sum(1))
        q = (batch.reward.numpy() + batch.discount.numpy() * value[following]).reshape(STATES, 2)
    return q


def aims() -> tuple[TransitionBatch, np.ndarray]:
    """Create a chain with r = b_s - (a - c_s)^2, where c_s is the best action of state s; and V*, ``[STATES]``."""
    g = torch.Generator().manual_seed(0)
    states = torch.arange(STATES).repeat(64)
    action = torch.rand(len(states), 1, generator=g) * 2 - 1
    best, bonus = torch.tensor([-0.6, 0.3, 0.0, 0.7]), torch.tensor([0.1, 0.5, -0.2, 1.0])
    reward = bonus[states] - (action[:, 0] - best[states]).square()
    is_last = states == STATES - 1
    value = np.zeros(STATES + 1)
    for s in reversed(range(STATES)):
        value[s] = bonus[s] + GAMMA * value[s + 1]
    following = (states + 1).clamp(max=STATES - 1)
    batch = batch_of(states.tolist(), following.tolist(), reward.tolist(), is_last.tolist(), continuous=action)
    return batch, value[:-1]


def learn(
    action: ActionSpec,
    batch: TransitionBatch,
    steps: int,
    learning_rate: float = 3e-3,
    algorithm: str = "dqn",
    **changes: object,
) -> OffPolicyAlgorithm:
    torch.manual_seed(0)
    config = off_policy_config_of(algorithm)(algorithm=algorithm, **changes)
    made = make_algorithm(OBSERVATION, action, MODEL, config)
    optimiser = OptimiserConfig(learning_rate=learning_rate, max_grad_norm=10.0)
    updater = Update(made, optimiser, generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        updater.set_learning_rate(learning_rate * (1.0 - step / steps))
        updater.step([batch])
    updater.check()
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"target_update_every": 20},
        {"double": True, "tau": 0.1},
        {"double": True, "dueling": True, "tau": 0.1, "value_loss": "mse"},
    ],
)
def test_q_learning_finds_the_corridors_values(changes: dict[str, object]) -> None:
    batch = corridor()
    algorithm = learn(DISCRETE, batch, 600, algorithm="dqn", **changes)
    eye = {"obs": torch.eye(STATES)}
    expected = optimal_values(batch)
    np.testing.assert_allclose(algorithm.acting(eye)[:, 0].detach().numpy(), expected, atol=0.03)
    choice = algorithm.act(eye, None, None).discrete
    assert choice is not None
    assert choice[:, 0].tolist() == expected.argmax(1).tolist()


def test_branching_q_learning_finds_each_heads_best_choice() -> None:
    # One state, then the end; r is the sum of each head's reward. A head's value is its own reward plus the mean of the
    # others', since the batch holds all combinations equally often.
    earns = [[0.0, 1.0], [0.5, -0.5, 0.0]]
    pairs = [(a, b) for a in range(2) for b in range(3)]
    n = len(pairs)
    batch = batch_of(
        [0] * n, [0] * n, [earns[0][a] + earns[1][b] for a, b in pairs], [True] * n,
        discrete=torch.tensor(pairs, dtype=torch.int32),
    )  # fmt: skip
    algorithm = learn(MULTI, batch, 400, algorithm="dqn", value_loss="mse")
    q = algorithm.acting({"obs": torch.eye(STATES)[:1]})[0].detach().numpy()
    np.testing.assert_allclose(q[0, :2], [0.0, 1.0], atol=0.03)
    np.testing.assert_allclose(q[1], [1.0, 0.0, 0.5], atol=0.03)


def test_soft_q_learning_of_choices_finds_the_soft_optimum() -> None:
    batch, temperature = corridor(), 0.2
    algorithm = learn(DISCRETE, batch, 800, algorithm="sac", temperature=temperature, tau=0.1)
    eye = {"obs": torch.eye(STATES)}
    expected = optimal_values(batch, temperature)
    q = algorithm.critics(eye)[:, :, 0].detach().numpy()  # type: ignore[operator]
    np.testing.assert_allclose(q, np.stack([expected] * 2), atol=0.05)
    policy = algorithm.acting(eye).softmax(-1).detach().numpy()
    soft = np.exp(expected / temperature)
    np.testing.assert_allclose(policy, soft / soft.sum(1, keepdims=True), atol=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "td3", "target_noise": 0.0},
        pytest.param({"algorithm": "ddpg"}, marks=pytest.mark.slow),
        pytest.param({"algorithm": "sac", "temperature": 1e-3}, marks=pytest.mark.slow),
    ],
)
def test_continuous_actions_find_the_optimum(changes: dict[str, object]) -> None:
    batch, value = aims()
    algorithm = learn(BOX, batch, 1200, tau=0.05, **changes)
    eye = {"obs": torch.eye(STATES)}
    action = algorithm.act(eye, None, None).continuous
    assert action is not None
    np.testing.assert_allclose(action[:, 0].numpy(), [-0.6, 0.3, 0.0, 0.7], atol=0.1)
    q = algorithm.critics(eye, action).detach().numpy()  # type: ignore[operator]
    np.testing.assert_allclose(q, np.stack([value] * len(q)), atol=0.1)


@pytest.mark.slow
def test_learned_temperature_reaches_the_target_entropy() -> None:
    batch, _ = aims()
    algorithm = learn(
        BOX, batch, 1200, tau=0.05, algorithm="sac", target_entropy=-0.5, temperature_learning_rate=1e-2,
        initial_temperature=0.1,
    )  # fmt: skip
    g = torch.Generator().manual_seed(0)
    excess = [algorithm.excess_entropy(batch, g).mean().item() for _ in range(20)]  # type: ignore[operator]
    assert np.mean(excess) == pytest.approx(0.0, abs=0.15)


def updater_of(name: str = "sac", **learner: object) -> tuple[Update, OffPolicyAlgorithm]:
    torch.manual_seed(0)
    algorithm = make_algorithm(
        OBSERVATION, BOX, MODEL, off_policy_config_of(name)(algorithm=name, actor_learning_rate=1e-4)
    )
    config = OptimiserConfig(**{"learning_rate": 1e-3, **learner})
    return Update(algorithm, config), algorithm


def test_statistics_are_means_over_the_steps_of_each_objective() -> None:
    updater, _ = updater_of("td3")
    batch, _ = aims()
    assert updater.take_statistics() == {}
    seen = []
    for _ in range(4):
        step = updater.step([batch])
        assert step is not None
        assert step.td_error is not None
        seen.append(step.td_error.mean().item())
    statistics = updater.take_statistics()
    assert statistics["td_error"] == pytest.approx(np.mean(seen), rel=1e-5)
    assert set(statistics) == {"q", "td_error", "critic_gradient_norm", "actor_loss", "actor_gradient_norm"}
    assert updater.take_statistics() == {}


def test_gradients_are_clipped_for_each_objective() -> None:
    updater, algorithm = updater_of(max_grad_norm=1e-3)
    updater.step([aims()[0]])
    for objective in algorithm.objectives():
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in objective.parameters if p.grad is not None))
        assert norm <= 1e-3 * 1.001
    assert updater.take_statistics()["critic_gradient_norm"] > 1e-3


def test_an_objective_s_own_learning_rate_keeps_its_ratio_to_the_learner_s() -> None:
    updater, _ = updater_of()
    assert [o.param_groups[0]["lr"] for o in updater.optimisers] == [1e-3, 1e-4, 1e-3]
    updater.set_learning_rate(5e-4)
    assert [o.param_groups[0]["lr"] for o in updater.optimisers] == pytest.approx([5e-4, 5e-5, 5e-4])


def rates_of(updater: Update) -> list[float]:
    return [optimiser.param_groups[0]["lr"] for optimiser in updater.optimisers]


def test_a_policy_that_continues_from_another_has_its_ratios_of_learning_rates() -> None:
    source, own = updater_of(learning_rate=1e-3)[0], updater_of(learning_rate=4e-3)[0]
    own.take_over(source)
    numbers = LiveNumbers()
    numbers.set({"learning_rate": 2e-3})
    own.follow(numbers, 4e-3)
    assert rates_of(own) == pytest.approx([2e-3, 2e-4, 2e-3])
    resumed, third = updater_of(learning_rate=4e-3)[0], updater_of(learning_rate=1e-2)[0]
    resumed.load_state_dict(own.state_dict())
    third.take_over(resumed)
    for updater in (resumed, third):
        updater.follow(numbers, 4e-3)
        assert rates_of(updater) == pytest.approx([2e-3, 2e-4, 2e-3])
    # Where the learning rate is not among the numbers that are mutated, all rates stay the configured ones.
    own.follow(LiveNumbers(), 4e-3)
    assert rates_of(own) == pytest.approx([4e-3, 1e-4, 4e-3])


def test_a_state_without_ratios_of_learning_rates_leaves_the_configured_ones() -> None:
    source, own = updater_of(learning_rate=1e-3)[0], updater_of(learning_rate=4e-3)[0]
    assert "learning_rate_ratios" not in source.state_dict()
    own.load_state_dict(source.state_dict())
    numbers = LiveNumbers()
    numbers.set({"learning_rate": 2e-3})
    own.follow(numbers, 4e-3)
    assert rates_of(own) == pytest.approx([2e-3, 5e-5, 2e-3])


def test_non_finite_values_raise_and_leave_the_weights_unchanged() -> None:
    updater, algorithm = updater_of()
    batch, _ = aims()
    updater.step([batch])
    updater.check()
    updater.step([batch._replace(reward=torch.full_like(batch.reward, math.inf))])
    with pytest.raises(NonFiniteGradientError, match=r"SGD step 2 or one before; not finite: .*td_error"):
        updater.check()
    assert all(p.isfinite().all() for p in algorithm.parameters())


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_other_precisions(precision: str) -> None:
    torch.manual_seed(0)
    algorithm = make_algorithm(OBSERVATION, BOX, MODEL, SACConfig())
    updater = Update(algorithm, OptimiserConfig(), replace(PLAIN, precision=precision))
    batch, _ = aims()
    updater.step([batch])
    updater.check()
    expected = torch.float64 if precision == "fp64" else torch.float32
    assert {p.dtype for p in algorithm.parameters()} == {expected}


def test_state_of_other_objectives_raises() -> None:
    sac, td3 = updater_of("sac")[0], updater_of("td3")[0]
    with pytest.raises(ValueError, match="the checkpoint has optimisers of critic, actor, temperature, this algorithm"):
        td3.load_state_dict(sac.state_dict())


def test_priorities_require_td_errors() -> None:
    updater, algorithm = updater_of("td3")
    updater.require_td_errors()  # no step yet
    batch, _ = aims()
    updater.step([batch])
    updater.require_td_errors()
    objectives = [
        o._replace(loss=lambda *a, loss=o.loss: loss(*a)._replace(td_error=None)) for o in algorithm.objectives()
    ]
    algorithm.objectives = lambda: objectives  # type: ignore[method-assign]
    plain = Update(algorithm, OptimiserConfig())
    plain.step([batch])
    plain.require_td_errors()  # no actor step yet
    plain.step([batch])
    with pytest.raises(ValueError, match=r"no loss of TD3 returns td_error, .* choose replay.priorities=uniform"):
        plain.require_td_errors()


PICTURE = {"obs": ArraySpec(shape=(2, 40, 40), dtype="uint8")}
CENTRED = ModelConfig(encoder="nature", dense_size=16, mlp_sizes=(16,), centre_pixels=True)


def pictures(level: int, action: ActionSpec) -> TransitionBatch:
    """Create four images of this brightness and four of twice as much."""
    x = {"obs": torch.tensor([level, 2 * level], dtype=torch.uint8).view(1, 2, 1, 1).expand(4, 2, 40, 40)}
    real = torch.zeros(4, 1) if action is BOX else None
    choice = None if action is BOX else torch.zeros(4, 1, dtype=torch.int32)
    return TransitionBatch(x, choice, real, torch.zeros(4), torch.ones(4), x, None, None, torch.ones(4))


def levels(of: OffPolicyAlgorithm) -> set[tuple[float, ...]]:
    return {tuple(layer.moments.shift.tolist()) for layer in centred_layers(of) if layer.moments is not None}


@pytest.mark.parametrize(("name", "action"), [("dqn", DISCRETE), ("sac", DISCRETE), ("sac", BOX), ("td3", BOX)])
def test_images_are_centred_by_the_first_batch(name: str, action: ActionSpec) -> None:
    config = off_policy_config_of(name)(algorithm=name, target_update_every=1000)
    algorithm = make_algorithm(PICTURE, action, CENTRED, config)
    updater = Update(algorithm, OptimiserConfig())
    assert levels(algorithm) == {(0.0, 0.0)}
    assert updater.centre_pictures(pictures(50, action))
    updater.step([pictures(50, action)])
    # Acting networks, critics and targets have the same levels.
    assert levels(algorithm) == {(50.0, 100.0)}
    assert not updater.centre_pictures(pictures(90, action))
    updater.step([pictures(90, action)])
    assert levels(algorithm) == {(50.0, 100.0)}
    assert all(not layer._forward_pre_hooks for layer in centred_layers(algorithm))

    again = make_algorithm(PICTURE, action, CENTRED, config)
    resumed = Update(again, OptimiserConfig())
    again.load_state_dict(algorithm.state_dict())
    resumed.load_state_dict(updater.state_dict())
    assert not resumed.centre_pictures(pictures(90, action))
    resumed.step([pictures(90, action)])
    assert levels(again) == {(50.0, 100.0)}


class Together(Alone):
    """Ranks that are threads."""

    def __init__(self, barrier: threading.Barrier, parts: dict[int, Tensor], rank: int) -> None:
        self.rank, self.world_size = rank, barrier.parties
        self._barrier, self._parts = barrier, parts

    def sum(self, tensor: Tensor) -> Tensor:
        self._parts[self.rank] = tensor.clone()
        self._barrier.wait(60)
        total = torch.stack([self._parts[rank] for rank in range(self.world_size)]).sum(0)
        self._barrier.wait(60)
        return total

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], statistics: Tensor) -> Tensor:
        for parameter in parameters:
            parameter.grad = self.sum(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
        return statistics


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_ranks_centre_images_by_the_images_of_all_ranks(name: str) -> None:
    algorithm = make_algorithm(PICTURE, DISCRETE, CENTRED, off_policy_config_of(name)(algorithm=name))
    copies = [copy.deepcopy(algorithm) for _ in range(2)]
    barrier, parts = threading.Barrier(2), dict[int, Tensor]()

    def learn(rank: int) -> None:
        updater = Update(
            copies[rank],
            OptimiserConfig(),
            generator=torch.Generator().manual_seed(rank),
            collective=Together(barrier, parts, rank),
        )
        updater.centre_pictures(pictures((50, 90)[rank], DISCRETE))
        updater.step([pictures((50, 90)[rank], DISCRETE)])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(learn, rank) for rank in range(2)]:
            done.result()
    assert levels(copies[0]) == levels(copies[1]) == {(70.0, 140.0)}
    for one, other in zip(copies[0].parameters(), copies[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda each: [], "returned none: return at least one"),
        (lambda each: [each, each], "has objectives with the names critic, critic: use unique names"),
        (lambda each: [each._replace(parameters=[])], "has objective 'critic' without parameters"),
        (lambda each: [each._replace(every=0)], "has objective 'critic' with every=0: give an integer of at least 1"),
    ],
)
def test_invalid_objectives_raise(change, message):
    algorithm = make_algorithm(OBSERVATION, DISCRETE, MODEL, DQNConfig())
    (objective,) = algorithm.objectives()
    objectives = change(objective._replace(name="critic"))
    algorithm.objectives = lambda: objectives
    with pytest.raises(ValueError, match=message):
        Update(algorithm, OptimiserConfig())

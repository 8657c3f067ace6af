"""Deep Q-learning from sequences against an oracle that computes one row and one step at a time."""

from __future__ import annotations

import io
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rollmill.algorithms.batches import SequenceBatch
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import DQNConfig, off_policy_config_of
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.update import Update
from rollmill.models.config import CoreKind, ModelConfig
from rollmill.models.q_network import QNetwork
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
MULTI = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=3)), structure="multidiscrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)),), structure="box")
GAMMA, BURN_IN, LENGTH, N_STEP, ROWS = 0.9, 3, 5, 3, 6
WINDOW = BURN_IN + LENGTH + N_STEP - 1


def model(core: CoreKind = "gru", **changes: Any) -> ModelConfig:
    return ModelConfig(mlp_sizes=(8,), core=core, core_size=5, **changes)


def build(action: ActionSpec = DISCRETE, core: str = "gru", **changes: Any) -> RecurrentDQN:
    torch.manual_seed(0)
    algorithm = make_algorithm(OBSERVATION, action, model(core), DQNConfig(**changes))
    assert isinstance(algorithm, RecurrentDQN)
    with torch.no_grad():
        for p in algorithm.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return algorithm


class Raw(NamedTuple):
    """Data of each step, ``[W]`` or ``[W + 1]`` for each row."""

    reward: Any
    terminated: Any
    truncated: Any
    valid: Any
    reset: Any


def happenings(seed: int) -> Raw:
    """Create short episodes in NEXT_STEP layout, and environments that fail."""
    random = np.random.default_rng(seed)
    raw = Raw(
        random.normal(size=(WINDOW, ROWS)).astype(np.float32),
        *(np.zeros((WINDOW, ROWS), bool) for _ in range(2)),
        np.ones((WINDOW, ROWS), bool),
        np.zeros((WINDOW + 1, ROWS), bool),
    )
    for row in range(ROWS):
        is_over = row == 0  # the window begins with a masked row
        for t in range(WINDOW):
            kind = random.random()
            if is_over or kind < 0.1:
                raw.reward[t, row], raw.valid[t, row], raw.reset[t + 1, row] = 0.0, False, True
                is_over = False
            elif row > 1:  # row 1 has no end
                raw.terminated[t, row], raw.truncated[t, row] = kind > 0.85, 0.7 < kind <= 0.85
                is_over = kind > 0.7
    return raw


def literal_return(raw: Raw, t: int, row: int, left: int) -> tuple[float, float, int]:
    """Return (reward, discount, step of the bootstrap value) for step t, by recursion."""
    if left == 0 or not raw.valid[t, row]:
        return 0.0, 1.0, t
    if raw.terminated[t, row]:
        return float(raw.reward[t, row]), 0.0, t + 1
    if raw.truncated[t, row]:
        return float(raw.reward[t, row]), GAMMA, t + 1
    reward, discount, then = literal_return(raw, t + 1, row, left - 1)
    return float(raw.reward[t, row]) + GAMMA * reward, GAMMA * discount, then


def make_batch(raw: Raw, action: ActionSpec, state_size: int, *, seed: int = 0, masked: bool = False) -> SequenceBatch:
    g = torch.Generator().manual_seed(seed)
    learned = slice(BURN_IN, BURN_IN + LENGTH)
    returns = [
        [literal_return(raw, t, row, N_STEP) if raw.valid[t, row] else (0.0, 0.0, t) for row in range(ROWS)]
        for t in range(learned.start, learned.stop)
    ]
    reward, discount, then = (torch.tensor([[step[i] for step in at] for at in returns]) for i in range(3))
    sizes = action.categorical_sizes
    return SequenceBatch(
        burn_in=BURN_IN,
        observation={"obs": torch.randn(WINDOW + 1, ROWS, 3, generator=g)},
        discrete=torch.stack([torch.randint(0, n, (WINDOW, ROWS), generator=g) for n in sizes], -1).to(torch.int32),
        continuous=None,
        reward=reward.float(),
        discount=discount.float(),
        then=then.long(),
        valid=torch.from_numpy(raw.valid[learned]),
        reset=torch.from_numpy(raw.reset),
        reset_steps=np.flatnonzero(raw.reset.any(1)).tolist(),
        rnn_state=torch.randn(ROWS, state_size, generator=g),
        action_mask=torch.rand(WINDOW + 1, ROWS, action.mask_size, generator=g) < 0.6 if masked else None,
        weight=torch.rand(ROWS, generator=g) + 0.5,
    )


def stepped(network: QNetwork, batch: SequenceBatch, row: int) -> Tensor:
    """Compute values ``[W + 1, K, n]`` of a row step by step from the stored state."""
    state, values = batch.rnn_state[row : row + 1], []
    for t in range(WINDOW + 1):
        if batch.reset[t, row]:
            state = torch.zeros_like(state)
        q, state = network.step({"obs": batch.observation["obs"][t, row : row + 1]}, state)
        values.append(q[0])
    return torch.stack(values)


def literal_errors(algorithm: RecurrentDQN, batch: SequenceBatch, raw: Raw) -> dict[tuple[int, int], list[float]]:
    """Return (step, row) -> each head's TD error, for the learned valid steps."""
    config, branches = algorithm.config, algorithm.acting.branches
    errors = {}
    for row in range(ROWS):
        online, target = (stepped(n, batch, row).detach() for n in (algorithm.acting, algorithm.target_network))
        for t in range(BURN_IN, BURN_IN + LENGTH):
            if not raw.valid[t, row]:
                continue
            reward, discount, then = literal_return(raw, t, row, N_STEP)
            allowed = branches.allowed(None if batch.action_mask is None else batch.action_mask[then, row][None], 1)[0]
            bootstraps = []
            for head in range(branches.heads):
                choices = [c for c in range(branches.most) if allowed[head, c]]
                chooses = online if config.double else target
                best = max(choices, key=lambda c: chooses[then, head, c].item())
                value = target[then, head, best].item()
                if config.value_rescaling:
                    value = invert(value)
                bootstraps.append(value)
            y = reward + discount * sum(bootstraps) / len(bootstraps)
            if config.value_rescaling:
                y = h(y)
            assert batch.discrete is not None
            taken = [online[t, head, int(batch.discrete[t, row, head])].item() for head in range(branches.heads)]
            errors[t - BURN_IN, row] = [q - y for q in taken]
    return errors


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + 1e-3 * x


def invert(y: float) -> float:
    low, high = -1e4, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


@pytest.mark.parametrize(
    ("action", "core", "changes", "masked"),
    [
        (DISCRETE, "gru", {}, False),
        (DISCRETE, "lstm", {"double": True, "dueling": True}, False),
        (DISCRETE, "gru", {"double": True, "value_rescaling": True}, True),
        (MULTI, "lstm", {"value_loss": "mse"}, True),
        (MULTI, "gru", {"double": True, "dueling": True, "value_rescaling": True}, True),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_stepping_through_each_row(
    action: ActionSpec, core: str, changes: dict[str, Any], masked: bool, seed: int
) -> None:
    algorithm = build(action, core, **changes)
    raw = happenings(seed)
    batch = make_batch(raw, action, algorithm.state_size, seed=seed, masked=masked)
    errors = literal_errors(algorithm, batch, raw)
    assert 0 < len(errors) < LENGTH * ROWS
    loss = algorithm.loss(batch, None)

    def penalty(e: float) -> float:
        return 0.5 * e * e if changes.get("value_loss") == "mse" or abs(e) <= 1.0 else abs(e) - 0.5

    heads = algorithm.acting.branches.heads
    weighted = sum(batch.weight[row].item() * sum(map(penalty, e)) / heads for (_, row), e in errors.items())
    assert loss.value.item() == pytest.approx(weighted / len(errors), rel=1e-4)
    mean_error = {place: sum(map(abs, e)) / heads for place, e in errors.items()}
    assert loss.statistics["td_error"].item() == pytest.approx(sum(mean_error.values()) / len(errors), rel=1e-4)
    assert loss.td_error is not None
    for row in range(ROWS):
        of_row = [e for (_, r), e in mean_error.items() if r == row]
        expected = 0.9 * max(of_row) + 0.1 * sum(of_row) / len(of_row) if of_row else 0.0
        assert loss.td_error[row].item() == pytest.approx(expected, rel=1e-4)


def test_burn_in_state_equals_stepping_and_has_no_gradient() -> None:
    algorithm = build()
    raw = happenings(1)
    batch = make_batch(raw, DISCRETE, algorithm.state_size)
    observation = batch.observation["obs"].clone().requires_grad_()
    batch = batch._replace(observation={"obs": observation}, rnn_state=batch.rnn_state.clone().requires_grad_())
    q = algorithm._unroll(algorithm.acting, batch, LENGTH)
    for row in range(ROWS):
        torch.testing.assert_close(q[:, row], stepped(algorithm.acting, batch, row)[BURN_IN : BURN_IN + LENGTH])
    q.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it so
    assert batch.rnn_state.grad is None
    assert observation.grad is not None
    assert not observation.grad[:BURN_IN].any()
    assert observation.grad[BURN_IN : BURN_IN + LENGTH].abs().sum((1, 2)).min() > 0


def test_invalid_steps_and_steps_after_an_end_are_ignored() -> None:
    algorithm = build()
    raw = happenings(2)
    batch = make_batch(raw, DISCRETE, algorithm.state_size)
    before = algorithm.loss(batch, None)
    assert batch.discrete is not None
    assert not batch.valid.all()
    discrete = batch.discrete.clone()
    learned = discrete[BURN_IN : BURN_IN + LENGTH]
    learned[~batch.valid] = (learned[~batch.valid] + 1) % 4
    after = algorithm.loss(batch._replace(discrete=discrete), None)
    assert torch.equal(after.value, before.value)
    # Without valid steps there is no gradient, and no division by zero.
    nothing = algorithm.loss(batch._replace(valid=torch.zeros_like(batch.valid)), None)
    assert nothing.value.item() == 0.0
    assert nothing.td_error is not None
    assert not nothing.td_error.any()


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_acting_keeps_the_state_and_zeroes_it_at_resets(core: str) -> None:
    algorithm = build(core=core)
    g = torch.Generator().manual_seed(3)
    observation = torch.randn(7, ROWS, 3, generator=g)
    reset = torch.rand(7, ROWS, generator=g) < 0.3
    start = torch.randn(ROWS, algorithm.state_size, generator=g)
    q, last = algorithm.acting.unroll({"obs": observation}, start, reset, np.flatnonzero(reset.any(1)).tolist())
    state: Tensor | None = start
    for t in range(7):
        action, state = algorithm.act_with_state({"obs": observation[t]}, state, reset[t], None, None)
        assert action.discrete is not None
        assert action.discrete[:, 0].tolist() == q[t, :, 0].argmax(-1).tolist()
    torch.testing.assert_close(state, last)
    # Without a state, the observation counts as the first of an episode.
    alone = algorithm.act({"obs": observation[0]}, None, None).discrete
    everywhere = torch.ones(ROWS, dtype=torch.bool)
    first, _ = algorithm.act_with_state({"obs": observation[0]}, start, everywhere, None, None)
    assert alone is not None
    assert first.discrete is not None
    assert torch.equal(alone, first.discrete)


def test_all_weights_are_learned_and_saved() -> None:
    algorithm, other = (build(dueling=True, double=True, target_update_every=2) for _ in range(2))
    updater = Update(algorithm, OptimiserConfig(learning_rate=1e-2))
    batch = make_batch(happenings(0), DISCRETE, algorithm.state_size)
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    steps = [updater.step([batch]) for _ in range(60)]
    updater.check()
    for name, p in algorithm.named_parameters():
        assert not torch.equal(p, before[name]), name
    first, last = (step.td_error for step in (steps[0], steps[-1]) if step is not None)
    assert first is not None
    assert last is not None
    assert last.mean() < 0.7 * first.mean()
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.loss(batch, None).value, algorithm.loss(batch, None).value)


@pytest.mark.parametrize(("name", "action"), [("sac", DISCRETE), ("sac", BOX), ("td3", BOX), ("ddpg", BOX)])
def test_other_algorithms_reject_a_core(name: str, action: ActionSpec) -> None:
    with pytest.raises(ValueError, match=r"model.core is 'gru', but this algorithm learns from single transitions"):
        make_algorithm(OBSERVATION, action, model(), off_policy_config_of(name)(algorithm=name))


def test_variants_of_dqn_reject_a_core() -> None:
    with pytest.raises(ValueError, match=r"use dqn \(--algo dqn, algo='dqn'\), which learns from sequences too"):
        DQN(OBSERVATION, DISCRETE, model(), DQNConfig())
    assert type(make_algorithm(OBSERVATION, DISCRETE, ModelConfig(), DQNConfig())) is DQN
    with pytest.raises(ValueError, match="rates every choice"):
        make_algorithm(OBSERVATION, BOX, model(), DQNConfig())

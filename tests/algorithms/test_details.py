"""Details of single algorithms: double Q-learning, TD3's noise and delay, temperatures, target entropies."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.discrete_sac import DiscreteSAC
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import DDPGConfig, DQNConfig, SACConfig, TD3Config
from rollmill.algorithms.sac import SAC
from rollmill.algorithms.td3 import DDPG, TD3
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.update import Update
from rollmill.losses.dqn import rescale, unscale
from rollmill.models.config import ModelConfig
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}
DISCRETE = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
MULTI = ActionSpec(heads=(CategoricalHead(n=2), CategoricalHead(n=3)), structure="multidiscrete")
BOX = ActionSpec(heads=(BoxHead(low=(-1.0,) * 2, high=(1.0,) * 2, shape=(2,)),), structure="box")
MODEL = ModelConfig(mlp_sizes=(16,))

MakeBatch = Callable[..., TransitionBatch]


def perturb(*modules: torch.nn.Module) -> None:
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.add_(0.5 * torch.randn(p.shape, generator=g))


@pytest.mark.parametrize("double", [False, True])
def test_dqn_target_equals_the_papers(double: bool, make_batch: MakeBatch) -> None:
    dqn = DQN(OBSERVATION, DISCRETE, MODEL, DQNConfig(double=double))
    perturb(dqn.acting, dqn.target_network)
    batch = make_batch(OBSERVATION, DISCRETE, rows=32)
    online, rated = (network(batch.next_observation)[:, 0] for network in (dqn.acting, dqn.target_network))
    expected = []
    for n in range(32):
        choice = (online if double else rated)[n].argmax()
        expected.append((batch.reward[n] + batch.discount[n] * rated[n, choice]).item())
    assert dqn.target(batch).tolist() == pytest.approx(expected, rel=1e-5)
    loss = dqn.loss(batch, None)
    assert loss.td_error is not None
    assert batch.discrete is not None
    taken = [dqn.acting(batch.observation)[n, 0, batch.discrete[n, 0]].item() for n in range(32)]
    errors = [abs(q - y) for q, y in zip(taken, expected, strict=True)]
    assert loss.td_error.tolist() == pytest.approx(errors, rel=1e-4, abs=1e-5)
    huber = [0.5 * e * e if e <= 1.0 else e - 0.5 for e in errors]
    weighted = sum(w * h for w, h in zip(batch.weight.tolist(), huber, strict=True)) / 32
    assert loss.value.item() == pytest.approx(weighted, rel=1e-4)


def test_dqn_target_with_value_rescaling(make_batch: MakeBatch) -> None:
    dqn = DQN(OBSERVATION, DISCRETE, MODEL, DQNConfig(value_rescaling=True))
    perturb(dqn.target_network)
    batch = make_batch(OBSERVATION, DISCRETE, rows=16)
    plain = batch.reward + batch.discount * unscale(dqn.target_network(batch.next_observation)[:, 0].amax(-1))
    torch.testing.assert_close(dqn.target(batch), rescale(plain))


def test_several_heads_errors_are_averaged(make_batch: MakeBatch) -> None:
    dqn = DQN(OBSERVATION, MULTI, MODEL, DQNConfig(value_loss="mse"))
    perturb(dqn.target_network)
    batch = make_batch(OBSERVATION, MULTI)
    assert batch.discrete is not None
    next_q = dqn.target_network(batch.next_observation)
    target = batch.reward + batch.discount * (next_q[:, 0, :2].amax(-1) + next_q[:, 1].amax(-1)) / 2
    q = dqn.acting(batch.observation)
    deltas = torch.stack([q[range(8), k, batch.discrete[:, k].long()] - target for k in range(2)])
    loss = dqn.loss(batch, None)
    torch.testing.assert_close(loss.td_error, deltas.abs().mean(0).detach())
    torch.testing.assert_close(loss.value, (batch.weight * 0.5 * deltas.square()).mean())


def test_td3_smooths_its_targets_and_ddpg_does_not(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(OBSERVATION, BOX, rows=64)
    for cls in (TD3, DDPG):
        algorithm = cls(OBSERVATION, BOX, MODEL, TD3Config(target_noise=10.0, target_noise_clip=0.25))
        seen: list[Tensor] = []
        critics = algorithm.targets["critics"]
        monkeypatch.setattr(critics, "forward", lambda o, a, f=critics.forward, seen=seen: seen.append(a) or f(o, a))
        algorithm.critic_loss(batch, torch.Generator().manual_seed(0))
        exact = algorithm.targets["actor"](batch.next_observation).tanh()
        noise = seen[0] - exact
        assert noise.abs().max().item() == pytest.approx(0.25 if cls is TD3 else 0.0, abs=1e-6)
        assert (noise.abs() > 0.2).float().mean() > 0.9 or cls is DDPG
        monkeypatch.undo()


def test_td3s_target_takes_the_lower_critic(make_batch: MakeBatch) -> None:
    torch.manual_seed(11)  # neither critic is always lower
    td3 = TD3(OBSERVATION, BOX, MODEL, TD3Config(target_noise=0.0))
    perturb(td3.targets)
    batch = make_batch(OBSERVATION, BOX)
    action = td3.targets["actor"](batch.next_observation).tanh()
    next_q = td3.targets["critics"](batch.next_observation, action)
    assert (next_q[0] > next_q[1]).any()
    assert (next_q[0] < next_q[1]).any()
    target = batch.reward + batch.discount * torch.minimum(next_q[0], next_q[1])
    q = td3.critics(batch.observation, batch.continuous)
    loss = td3.critic_loss(batch, None)
    torch.testing.assert_close(loss.value, 0.5 * (batch.weight * (q - target).square()).mean(-1).sum())
    torch.testing.assert_close(loss.td_error, (q - target).abs().mean(0).detach())
    assert DDPG(OBSERVATION, BOX, MODEL, DDPGConfig()).critics(batch.observation, batch.continuous).shape == (1, 8)


def test_td3_delays_the_actor(make_batch: MakeBatch) -> None:
    td3 = TD3(OBSERVATION, BOX, MODEL, TD3Config(policy_delay=3))
    updater = Update(td3, OptimiserConfig())
    batch = make_batch(OBSERVATION, BOX)
    changes = []
    for _ in range(6):
        before = [p.detach().clone() for p in (*td3.acting.parameters(), *td3.targets.parameters())]
        updater.step([batch])
        after = [*td3.acting.parameters(), *td3.targets.parameters()]
        changes.append(sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
    assert [bool(c) for c in changes] == [False, False, True, False, False, True]


def test_actor_loss_follows_the_first_critic_and_leaves_critics_unchanged(make_batch: MakeBatch) -> None:
    td3 = TD3(OBSERVATION, BOX, MODEL, TD3Config())
    batch = make_batch(OBSERVATION, BOX)
    loss = td3.actor_loss(batch, None)
    action = td3.acting(batch.observation).tanh()
    torch.testing.assert_close(loss.value, -td3.critics(batch.observation, action)[0].mean())
    loss.value.backward()
    assert all(p.grad is None for p in td3.critics.parameters())
    assert all(p.grad is not None for p in td3.acting.own_parameters())


def test_sac_losses_equal_the_papers(make_batch: MakeBatch) -> None:
    sac = SAC(OBSERVATION, BOX, MODEL, SACConfig(initial_temperature=0.3))
    perturb(sac.target_critics)
    batch = make_batch(OBSERVATION, BOX)

    def sample(observation: dict[str, Tensor], seed: int) -> tuple[Tensor, Tensor]:
        mean, log_std = sac.acting(observation).chunk(2, -1)
        u = mean + log_std.exp() * torch.randn(8, 2, generator=torch.Generator().manual_seed(seed))
        normal = torch.distributions.Normal(mean, log_std.exp())
        return u.tanh(), (normal.log_prob(u) - (1.0 - u.tanh().square()).log()).sum(-1)

    action, log_prob = sample(batch.next_observation, 4)  # type: ignore[arg-type]
    soft = sac.target_critics(batch.next_observation, action).amin(0) - 0.3 * log_prob
    target = batch.reward + batch.discount * soft
    q = sac.critics(batch.observation, batch.continuous)
    loss = sac.critic_loss(batch, torch.Generator().manual_seed(4))
    expected = 0.5 * (batch.weight * (q - target).square()).mean(-1).sum()
    torch.testing.assert_close(loss.value, expected, rtol=1e-4, atol=1e-5)

    action, log_prob = sample(batch.observation, 5)  # type: ignore[arg-type]
    expected = (0.3 * log_prob - sac.critics(batch.observation, action).amin(0)).mean()
    loss = sac.actor_loss(batch, torch.Generator().manual_seed(5))
    torch.testing.assert_close(loss.value, expected, rtol=1e-4, atol=1e-5)
    # The temperature's loss reuses that policy's entropy; for another batch it computes its own.
    kept = sac.temperature_loss(batch, None)
    torch.testing.assert_close(kept.value, math.log(0.3) * (-log_prob.mean() + 2.0), rtol=1e-4, atol=1e-5)
    again = sac.temperature_loss(batch, torch.Generator().manual_seed(5))
    torch.testing.assert_close(again.value, kept.value)


def test_target_entropy_of_real_numbers_is_minus_their_number() -> None:
    assert SAC(OBSERVATION, BOX, MODEL, SACConfig()).target_entropy == -2.0


def test_target_entropy_depends_on_the_allowed_choices() -> None:
    sac = DiscreteSAC(OBSERVATION, MULTI, MODEL, SACConfig())
    whole = 0.89 * math.log(6)
    assert sac.target_entropy(None).tolist() == pytest.approx([whole])  # type: ignore[union-attr]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    target = sac.target_entropy(mask)
    assert isinstance(target, Tensor)
    assert target.tolist() == pytest.approx([whole, 0.89 * math.log(2), 0.89 * math.log(2)])
    assert DiscreteSAC(OBSERVATION, MULTI, MODEL, SACConfig(target_entropy=0.5)).target_entropy(mask) == 0.5

"""V-trace against its definition as a double sum, against rlax's published numbers, and against GAE."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollmill.losses.gae import gae_numpy, recursion_cut_numpy
from rollmill.losses.vtrace import vtrace

Data = dict[str, NDArray[np.generic]]


def slot(seed: int, steps: int, rows: int) -> Data:
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, rows)) < 0.2
    truncated = ~terminated & (rng.random((steps, rows)) < 0.2)
    valid = rng.random((steps, rows)) > 0.1
    # In half of the slots only: without a masked row after an episode's end, only the cut separates episodes.
    for t in range(steps - 1 if seed % 2 else 0):
        valid[t + 1] &= ~(terminated[t] | truncated[t])
    behaviour = rng.normal(size=(steps, rows)) - 1.0
    behaviour[~valid] = np.nan
    return {
        "behaviour_log_prob": behaviour,
        "target_log_prob": rng.normal(size=(steps, rows)) - 1.0,
        "reward": np.where(valid, rng.normal(size=(steps, rows)), np.nan),
        "value": rng.normal(size=(steps + 1, rows)),
        "terminated": terminated & valid,
        "truncated": truncated & valid,
        "valid": valid,
    }


def literal_vtrace(
    data: Data, discount: float, lambda_: float, rho_bar: float, c_bar: float, rho_pg_bar: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equation 1 of the paper as a sum of products, for each step. O(T^2)."""
    steps, rows = data["reward"].shape
    vs = data["value"][:-1].copy()
    advantage = np.zeros((steps, rows))
    ratio = np.exp(data["target_log_prob"] - data["behaviour_log_prob"])

    def continues(t: int, row: int) -> bool:
        ends = data["terminated"][t, row] or data["truncated"][t, row]
        return not ends and t + 1 < steps and bool(data["valid"][t + 1, row])

    def next_value(t: int, row: int) -> float:
        return 0.0 if data["terminated"][t, row] else float(data["value"][t + 1, row])

    for row in range(rows):
        for t in range(steps):
            if not data["valid"][t, row]:
                continue
            product, k = 1.0, t
            while True:
                delta = data["reward"][k, row] + discount * next_value(k, row) - data["value"][k, row]
                vs[t, row] += discount ** (k - t) * product * min(rho_bar, ratio[k, row]) * delta
                if not continues(k, row):
                    break
                product *= lambda_ * min(c_bar, ratio[k, row])
                k += 1
        for t in range(steps):
            if not data["valid"][t, row]:
                continue
            following = next_value(t, row)
            if continues(t, row):
                following = lambda_ * vs[t + 1, row] + (1.0 - lambda_) * following
            q = data["reward"][t, row] + discount * following
            advantage[t, row] = min(rho_pg_bar, ratio[t, row]) * (q - data["value"][t, row])
    return vs, advantage


def cut_of(data: Data) -> torch.Tensor:
    return torch.from_numpy(recursion_cut_numpy(data["terminated"], data["truncated"], data["valid"]))


def run(data: Data, *, discount: float, **arguments: float) -> tuple[torch.Tensor, torch.Tensor]:
    t = {n: torch.from_numpy(a if a.dtype == bool else a.astype(np.float32)) for n, a in data.items()}
    return vtrace(
        t["behaviour_log_prob"],
        t["target_log_prob"],
        t["reward"],
        t["value"],
        discount * ~t["terminated"],
        cut_of(data),
        t["valid"],
        **arguments,
    )


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    discount=st.sampled_from([0.0, 0.9, 0.99]),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    rho_bar=st.sampled_from([0.5, 1.0, 2.0]),
    c_bar=st.sampled_from([0.5, 1.0]),
    rho_pg_bar=st.sampled_from([0.8, 1.0, 3.0]),
)
def test_equals_the_sum_of_products(
    seed: int, steps: int, discount: float, lambda_: float, rho_bar: float, c_bar: float, rho_pg_bar: float
) -> None:
    data = slot(seed, steps, 4)
    vs, advantage = literal_vtrace(data, discount, lambda_, rho_bar, c_bar, rho_pg_bar)
    result = run(data, discount=discount, vtrace_lambda=lambda_, rho_bar=rho_bar, c_bar=c_bar, rho_pg_bar=rho_pg_bar)
    np.testing.assert_allclose(result[0].numpy(), vs, rtol=5e-5, atol=5e-5)
    np.testing.assert_allclose(result[1].numpy(), advantage, rtol=5e-5, atol=5e-5)


def test_published_numbers_of_rlax() -> None:
    # rlax/_src/vtrace_test.py, [B=2, T=4].
    behaviour_logits = [
        [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
        [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
    ]
    target_logits = [
        [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
        [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
    ]
    actions = [[0, 1, 0, 0], [1, 0, 0, 1]]
    rewards = [[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]
    discounts = [[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]
    values = [[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]]
    bootstrap = [8.4, -1.2]
    expected = [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.33e-5, -13.54]]

    def log_prob(logits: list[list[list[float]]]) -> torch.Tensor:
        table = torch.tensor(logits, dtype=torch.float64).log_softmax(-1)
        return table.gather(-1, torch.tensor(actions).unsqueeze(-1)).squeeze(-1).T

    value = torch.cat([torch.tensor(values, dtype=torch.float64).T, torch.tensor([bootstrap], dtype=torch.float64)])
    cut = torch.zeros(4, 2, dtype=torch.bool)
    result = vtrace(
        log_prob(behaviour_logits),
        log_prob(target_logits),
        torch.tensor(rewards, dtype=torch.float64).T,
        value,
        torch.tensor(discounts, dtype=torch.float64).T,
        cut,
        torch.ones_like(cut),
    )
    np.testing.assert_allclose(result.pg_advantage.T.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_on_policy_it_is_gae_with_the_same_lambda() -> None:
    # With pi = mu all ratios are 1: vs - V is GAE's advantage (Espeholt et al. 2018, remark 1, generalised by lambda).
    data = slot(7, 10, 6)
    data["behaviour_log_prob"] = data["target_log_prob"]
    vs, _ = run(data, discount=0.97, vtrace_lambda=0.9)
    n = {name: array if array.dtype == bool else array.astype(np.float32) for name, array in data.items()}
    cut = cut_of(data).numpy()
    _, expected = gae_numpy(n["reward"], n["value"], n["terminated"], cut, n["valid"], discount=0.97, gae_lambda=0.9)
    np.testing.assert_allclose(vs.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gives_no_gradient() -> None:
    data = slot(1, 5, 2)
    value = torch.from_numpy(data["value"]).float().requires_grad_()
    log_prob = torch.from_numpy(data["target_log_prob"]).float().requires_grad_()
    flags = {n: torch.from_numpy(data[n]) for n in ("terminated", "valid")}
    result = vtrace(
        torch.from_numpy(data["behaviour_log_prob"]).float(),
        log_prob,
        torch.from_numpy(data["reward"]).float(),
        value,
        0.9 * ~flags["terminated"],
        cut_of(data),
        flags["valid"],
    )
    assert not result.vs.requires_grad
    assert not result.pg_advantage.requires_grad

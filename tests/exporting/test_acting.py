"""Acting as a function of random numbers: frequencies are probabilities, and the numbers are those of the agent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.off_policy_config import SACConfig
from rollmill.exporting.acting import Acting, Given, acting_of

from .conftest import CASES, SAMPLING, SMALL, Case, make_agent

VECTOR_CASES = ["MLP", "several heads", "SAC, choices"]


def uniform_and_normal(acting: Acting, rows: int) -> tuple[Tensor | None, Tensor | None]:
    g = torch.Generator().manual_seed(1)
    uniform = torch.rand(rows, acting.num_uniform, generator=g) if acting.num_uniform else None
    return uniform, torch.randn(rows, acting.num_normal, generator=g) if acting.num_normal else None


@pytest.mark.parametrize("name", VECTOR_CASES)
@torch.no_grad()
def test_choices_come_as_often_as_their_log_probabilities_say(name: str) -> None:
    acting, rows = acting_of(make_agent(CASES[name]).algorithm), 20_000
    given = Given({"obs": torch.randn(1, 6, generator=torch.Generator().manual_seed(0)).expand(rows, -1)})
    acted = acting(given._replace(uniform=uniform_and_normal(acting, rows)[0]))
    assert acted.discrete is not None
    assert acted.log_prob is not None
    choices, index, counts = np.unique(acted.discrete.numpy(), axis=0, return_index=True, return_counts=True)
    assert len(choices) > 2
    probabilities = acted.log_prob[torch.from_numpy(index)].exp().numpy()
    errors = np.sqrt(probabilities * (1 - probabilities) / rows)
    assert (np.abs(counts / rows - probabilities) < 5 * errors + 1e-4).all()


@pytest.mark.parametrize("name", SAMPLING)
def test_noise_is_what_the_algorithm_draws(name: str) -> None:
    if "CNN" in name or "ResNet" in name:
        pytest.skip("the same as for vectors")
    case, rows = CASES[name], 30
    acting = acting_of(make_agent(case).algorithm)
    found = acting.noise(rows, torch.Generator().manual_seed(3))
    sizes = {"uniform": acting.num_uniform, "normal": acting.num_normal}
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        name: (rows, size) for name, size in sizes.items() if size
    }
    for name, x in found.items():
        assert x.dtype == torch.float32
        assert name == "normal" or ((x >= 0) & (x <= 1)).all()


def test_only_what_has_probabilities_can_be_sampled() -> None:
    for name, case in CASES.items():
        if "CNN" not in name and "ResNet" not in name:
            assert acting_of(make_agent(case).algorithm).can_sample == (name in SAMPLING), name
    assert not acting_of(make_agent(Case(*CASES["SAC"][:2], SMALL, SACConfig(noise_kind="pink"))).algorithm).can_sample


def test_an_algorithm_that_acts_in_its_own_way_is_asked() -> None:
    class First(DQN):
        def choose(self, q, mask, explore):  # type: ignore[no-untyped-def]
            action = super().choose(q, mask, explore)
            return action._replace(discrete=torch.zeros_like(action.discrete))

    algorithm = make_agent(CASES["DQN"]).algorithm
    algorithm.__class__ = First
    acting = acting_of(algorithm)
    acted = acting(Given({"obs": torch.randn(5, 6)}))
    assert acted.discrete is not None
    assert acted.discrete.tolist() == [[0]] * 5
    assert acted.value is None
    assert not acting.can_sample

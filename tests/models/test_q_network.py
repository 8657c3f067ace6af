"""Branches, masks and dueling streams of Q-networks."""

from __future__ import annotations

import pytest
import torch

from rollmill.models.config import CoreKind, ModelConfig
from rollmill.models.off_policy import off_policy_model
from rollmill.models.q_network import FORBIDDEN, Branches, QNetwork
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

OBSERVATION = {"obs": ArraySpec(shape=(3,), dtype="float32")}


def choices(*sizes: int) -> ActionSpec:
    structure = "discrete" if len(sizes) == 1 else "multidiscrete"
    return ActionSpec(heads=tuple(CategoricalHead(n=n) for n in sizes), structure=structure)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(4,), (3, 3), (2, 4, 3)])
def test_branches_split_what_heads_have(sizes: tuple[int, ...]) -> None:
    branches = Branches(sizes)
    flat = torch.arange(2 * sum(sizes), dtype=torch.float32).view(2, -1)
    split = branches.split(flat)
    assert split.shape == (2, len(sizes), max(sizes))
    for k, head in enumerate(flat.split(list(sizes), -1)):
        torch.testing.assert_close(split[:, k, : sizes[k]], head)
        torch.testing.assert_close(branches.mean(split)[:, k, 0], head.mean(-1))
    torch.testing.assert_close(branches.split(torch.stack([flat, flat]))[1], split)
    restricted = branches.restrict(split, None)
    assert restricted.argmax(-1).tolist() == [[n - 1 for n in sizes]] * 2
    assert (restricted[0, 0, sizes[0] :] == FORBIDDEN).all()


def test_masks_forbid_choices_and_fully_forbidden_heads_are_unconstrained() -> None:
    branches = Branches((2, 3))
    mask = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 1, 0, 1]], dtype=torch.uint8)
    allowed = branches.allowed(mask, 2)
    assert allowed.tolist() == [
        [[True, False, False], [True, True, True]],
        [[False, True, False], [True, False, True]],
    ]
    assert branches.allowed(None, 2).tolist() == [[[True, True, False], [True, True, True]]] * 2


def test_a_dueling_networks_advantages_are_centred_on_its_value() -> None:
    torch.manual_seed(0)
    config = off_policy_model(ModelConfig(mlp_sizes=(8,), head_sizes=(6,)))
    network = QNetwork(OBSERVATION, choices(2, 4), config, dueling=True)
    assert network.value is not None
    x = torch.randn(5, 3)
    q = network({"obs": x})
    features = network.encoder({"obs": x})
    value = network.value(features)
    # The mean over existing choices is the state's value, and differences are those of the advantages.
    torch.testing.assert_close(q[:, 0, :2].mean(-1, keepdim=True), value)
    torch.testing.assert_close(q[:, 1].mean(-1, keepdim=True), value)
    advantage = network.advantage(features)
    torch.testing.assert_close(q[:, 1] - q[:, 1, :1], advantage[:, 2:] - advantage[:, 2:3])


def test_autocast_leaves_the_heads_in_float32() -> None:
    network = QNetwork(OBSERVATION, choices(3), off_policy_model(ModelConfig(mlp_sizes=(8,))))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network({"obs": torch.randn(5, 3)}).dtype == torch.float32


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("sizes", [(4,), (2, 3)])
def test_unroll_equals_steps_with_resets(core: CoreKind, dueling: bool, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    picture = ArraySpec(shape=(3, 36, 36), dtype="uint8", low=0, high=255)
    config = ModelConfig(mlp_sizes=(8,), head_sizes=(6,), dense_size=8, core=core, core_size=5)
    config = off_policy_model(config, may_be_recurrent=True)
    network = QNetwork({**OBSERVATION, "picture": picture}, choices(*sizes), config, dueling=dueling)
    assert network.state_size == (5 if core == "gru" else 10)
    time, rows = 7, 4
    observation = {
        "obs": torch.randn(time, rows, 3),
        "picture": torch.randint(0, 256, (time, rows, 3, 36, 36), dtype=torch.uint8),
    }
    reset = torch.rand(time, rows) < 0.3
    start = torch.randn(rows, network.state_size)
    q, last = network.unroll(observation, start, reset, reset.any(1).nonzero().flatten().tolist())
    assert q.shape == (time, rows, len(sizes), max(sizes))
    state = start
    for t in range(time):
        at, state = network.step({name: x[t] for name, x in observation.items()}, state, reset[t])
        torch.testing.assert_close(at, q[t])
    torch.testing.assert_close(state, last)
    # None means zeros, as after a reset.
    everywhere = torch.ones(rows, dtype=torch.bool)
    first = {name: x[0] for name, x in observation.items()}
    torch.testing.assert_close(network.step(first), network.step(first, start, everywhere))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"core": "gru"}, "model.core is 'gru', but this algorithm learns from single transitions"),
        ({"normalise_observations": True}, "model.normalise_observations is True, but off-policy algorithms have no"),
        ({"normalise_returns": True}, "model.normalise_returns is True"),
        ({"model": "own"}, "model.model is 'own', but a model given to register_model is for on-policy algorithms"),
    ],
)
def test_unsupported_features_raise(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        off_policy_model(ModelConfig(**change))  # type: ignore[arg-type]


def test_auto_selects_relu_and_pytorchs_initialisation() -> None:
    config = off_policy_model(ModelConfig())
    assert (config.activation, config.init) == ("relu", "torch")
    config = off_policy_model(ModelConfig(encoder="sf_simplified", init="orthogonal"))
    assert (config.activation, config.init) == ("auto", "orthogonal")

"""The minibatch loop: micro-batches, masks and recurrence do not change the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rollmill.algorithms.base import Loss
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.algorithms.targets import Targets
from rollmill.learning.admission import FirstInFirstOut
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.learning.trajectories import Trajectories
from rollmill.learning.update import Update, _Means
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.storage.slots import SlotStore, Topology, add_to_layout, slot_fields

T, B, SLOTS = 6, 4, 3
N = B * SLOTS
SPEC = EnvSpec(
    name="random",
    observation={"obs": ArraySpec(shape=(5,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=3), BoxHead(low=(-1.0,), high=(1.0,), shape=(1,))), structure="tuple"),
    has_action_mask=True,
)


class Scene:
    """Slots with random contents, one batch of them, and a model."""

    def __init__(self, *, core: str = "none", seed: int = 0) -> None:
        self.model_config = ModelConfig(core=core, core_size=8, mlp_sizes=(16,))  # type: ignore[arg-type]
        torch.manual_seed(seed)
        self.initial = make_model(SPEC.observation, SPEC.action, self.model_config)
        topology = Topology(
            rollout_length=T, group_rows=B, worker_of_group=(0,), policy_worker_of_group=(0,), slots_of_worker=(SLOTS,)
        )
        fields = slot_fields(SPEC, rollout_length=T, state_size=self.initial.state_size)
        layout = ArenaLayout()
        add_to_layout(layout, fields, topology)
        self.store = SlotStore(Arena.create(layout), fields, topology, create=True)
        self.fill(np.random.default_rng(seed))
        admission = FirstInFirstOut(self.store, N)
        for slot in range(SLOTS):
            admission.add(slot)
        batch = admission.take()
        assert batch is not None
        self.batch: Trajectories = batch

    def fill(self, random: np.random.Generator) -> None:
        a = self.store.arrays
        for array in self.store.observation.values():
            array[...] = random.standard_normal(array.shape)
        a["action_discrete"][...] = random.integers(0, 3, a["action_discrete"].shape)
        a["action_continuous"][...] = random.standard_normal(a["action_continuous"].shape)
        a["action_mask"][...] = True
        a["action_mask"][:, 2, :, 1] = a["action_discrete"][:, 2, :, 0] == 1
        a["value"][...] = random.standard_normal(a["value"].shape)
        a["log_prob"][...] = -2.0 + 0.3 * random.standard_normal(a["log_prob"].shape)
        a["reward"][...] = random.standard_normal(a["reward"].shape)
        a["terminated"][...] = random.random(a["terminated"].shape) < 0.15
        a["truncated"][...] = False
        a["valid"][...] = True
        # A masked row and a reset follow every end of an episode, as in the specs.
        a["reset"][...] = False
        ends = a["terminated"][:, :-1]
        a["valid"][:, 1:][ends] = False
        a["terminated"][:, 1:] &= a["valid"][:, 1:]
        a["reset"][:, 2:][ends] = True
        a["policy_version"][...] = 0
        if "rnn_state" in a:
            a["rnn_state"][...] = 0.5 * random.standard_normal(a["rnn_state"].shape)

    def algorithm(self, config: OnPolicyConfig) -> PPO:
        algorithm = PPO(SPEC.observation, SPEC.action, self.model_config, config)
        algorithm.acting.load_state_dict(self.initial.state_dict())
        return algorithm

    def learn(
        self,
        algorithm: PPO,
        config: OnPolicyConfig,
        path: FastPath,
        *,
        keep: np.ndarray | None = None,
        seed: int = 0,
        learning_rate: float = 1.0,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[int, bool]:
        """Run all epochs by plain gradient descent; return SGD steps and whether the update completed."""
        algorithm.encoder_batch = path.micro_batch
        update = Update(algorithm, OptimiserConfig(max_grad_norm=None), path)
        update._optimisers = [torch.optim.SGD(algorithm.parameters(), lr=learning_rate)]
        cut = Minibatches(algorithm, self.store.observation, path, np.random.default_rng(seed))
        kept = self.batch.arrays["valid"] if keep is None else keep
        coefficients = algorithm.coefficients({"clip_range": config.clip_range, "entropy_coef": config.entropy_weight})
        is_complete = True
        for minibatch in cut.of(self.batch, targets_of(self, config), kept, coefficients):
            step = update.step(minibatch, is_stopping=is_stopping)
            if step is not None:
                cut.keep_moments(step.moments)
            if step is None or is_stopping():
                is_complete = False
                break
        update.check(lambda: cut.non_finite(self.batch))
        return update.sgd_steps, is_complete

    def step(
        self,
        config: OnPolicyConfig,
        *,
        micro_batch: int = 10**6,
        graph_samples: int = 0,
        keep: np.ndarray | None = None,
        seed: int = 3,
        compiled: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Learn from the batch with a learning rate of 1; return the subtracted gradients."""
        algorithm = self.algorithm(config)
        path = FastPath(
            precision="fp32",
            micro_batch=micro_batch,
            channels_last=False,
            graph_samples=graph_samples,
            compile=compiled,
        )
        steps, _ = self.learn(algorithm, config, path, keep=keep, seed=seed)
        assert steps == config.sgd_steps_per_batch
        return {
            name: before.detach() - after.detach()
            for (name, before), after in zip(
                self.initial.named_parameters(), algorithm.acting.parameters(), strict=True
            )
        }


def targets_of(scene: Scene, config: OnPolicyConfig) -> Targets:
    return scene.algorithm(config).prepare(scene.batch.arrays, value_mean=0.0, value_std=1.0)


def config(**changes: object) -> OnPolicyConfig:
    base = OnPolicyConfig(batch_size=T * N, entropy_coef=0.01)
    return replace(base, **changes)  # type: ignore[arg-type]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert max(float(x.abs().max()) for x in a.values()) > 1e-3, "the gradients vanish: the test shows nothing"
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
@pytest.mark.parametrize("clip_kind", ["reciprocal", "symmetric", "none"])
def test_micro_batches_add_up_to_the_minibatch(core: str, advantage: str, clip_kind: str) -> None:
    scene = Scene(core=core)
    # Pieces do not know V-trace's moments of the whole minibatch (tested separately).
    of = config(advantage=advantage, clip_kind=clip_kind, normalise_advantages=advantage == "gae", value_clip=0.5)
    whole = scene.step(of)
    for micro_batch in (T, 2 * T, 5 * T + 1):
        assert_same(whole, scene.step(of, micro_batch=micro_batch))


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_each_sample_comes_with_the_value_that_the_behaviour_gave_it(core: str, advantage: str) -> None:
    scene, of = Scene(core=core), config(advantage=advantage)
    algorithm, path = scene.algorithm(of), FastPath(precision="fp32", micro_batch=10**6, channels_last=False)
    cut = Minibatches(algorithm, scene.store.observation, path, np.random.default_rng(0))
    arrays = scene.batch.arrays
    ((part,),) = cut.of(scene.batch, targets_of(scene, of), arrays["valid"], {})
    given = dict(zip(part.log_prob.ravel().tolist(), part.value.ravel().tolist(), strict=True))
    valid = arrays["valid"]
    expected = dict(zip(arrays["log_prob"][valid].tolist(), arrays["value"][:T][valid].tolist(), strict=True))
    assert expected.items() <= given.items()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling on a CPU needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # from the compiler
def test_a_compiled_update_has_the_same_gradient() -> None:
    scene = Scene()
    of = config(advantage="gae", normalise_advantages=True, minibatches=2)
    # Minibatches differ in size, because samples are excluded.
    few = scene.batch.arrays["valid"] & (np.arange(N) < N - 2)
    for keep in (None, few):
        assert_same(scene.step(of, keep=keep), scene.step(of, keep=keep, compiled=True))


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_an_encoder_in_micro_batches_changes_nothing_where_the_graph_holds_the_minibatch(
    core: str, advantage: str
) -> None:
    scene = Scene(core=core)
    of = config(advantage=advantage, normalise_advantages=True)
    whole = scene.step(of)
    for micro_batch in (1, T, 2 * T + 3):
        assert_same(whole, scene.step(of, micro_batch=micro_batch, graph_samples=10**6))


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_masked_samples_have_no_effect(core: str, advantage: str) -> None:
    of = config(advantage=advantage)
    scene = Scene(core=core)
    reference = scene.step(of)
    invalid = ~scene.batch.arrays["valid"]
    assert invalid.any()
    for name in ("reward", "log_prob"):
        scene.batch.arrays[name][invalid] = np.nan
    assert_same(reference, scene.step(of))


def test_samples_beyond_the_lag_limit_are_excluded_from_the_mean() -> None:
    scene = Scene()
    of = config(normalise_advantages=False)
    valid = scene.batch.arrays["valid"]
    keep = valid & (np.arange(N) < N // 2)
    half = Scene()
    half.batch = Trajectories(
        {name: a[:, : N // 2] if name != "rnn_state" else a[: N // 2] for name, a in scene.batch.arrays.items()},
        scene.batch.observation_index[:, : N // 2],
        scene.batch.slots,
        (),
    )
    assert_same(scene.step(of, keep=keep), half.step(of))


def test_a_recurrent_update_equals_a_step_by_step_unroll() -> None:
    """The oracle runs one row, one step at a time, and zeroes the state at the start of an episode."""
    scene = Scene(core="gru")
    of = config(clip_kind="none", normalise_advantages=False, entropy_coef=0.0, value_coef=0.5)
    model = make_model(SPEC.observation, SPEC.action, scene.model_config)
    model.load_state_dict(scene.initial.state_dict())
    a = scene.batch.arrays
    targets = targets_of(scene, of)
    assert targets.advantage is not None
    assert targets.return_ is not None
    obs = scene.store.observation["obs"].reshape(-1, 5)[scene.batch.observation_index]
    total = torch.zeros(())
    for row in range(N):
        state = torch.from_numpy(a["rnn_state"][row : row + 1])
        for t in range(T):
            if a["reset"][t, row]:
                state = torch.zeros_like(state)
            output = model({"obs": torch.from_numpy(obs[t, row : row + 1])}, state)
            assert output.rnn_state is not None
            state = output.rnn_state
            if not a["valid"][t, row]:
                continue
            log_prob = model.distribution.log_prob(
                output.params,
                torch.from_numpy(a["action_discrete"][t, row : row + 1]),
                torch.from_numpy(a["action_continuous"][t, row : row + 1]),
                torch.from_numpy(a["action_mask"][t, row : row + 1]),
            )
            total = total - log_prob.sum() * float(targets.advantage[t, row])
            total = total + 0.25 * (output.value.sum() - float(targets.return_[t, row])) ** 2
    (total / int(a["valid"].sum())).backward()
    literal = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_same(literal, scene.step(of))


def test_update_can_stop_after_any_sgd_step() -> None:
    scene, of = Scene(), config(epochs=3, minibatches=2)
    path = FastPath(precision="fp32", micro_batch=64, channels_last=False)
    asked: list[int] = []

    def is_stopping() -> bool:  # Called before each part (one per minibatch here) and after each step.
        asked.append(1)
        return len(asked) == 6

    assert scene.learn(scene.algorithm(of), of, path, is_stopping=is_stopping) == (3, False)


def test_slow_sgd_step_can_stop_between_micro_batches() -> None:
    scene, of = Scene(), config(epochs=1, minibatches=1)
    algorithm = scene.algorithm(of)
    before = [p.detach().clone() for p in algorithm.parameters()]
    path = FastPath(precision="fp32", micro_batch=4, channels_last=False)
    asked: list[int] = []

    def is_stopping() -> bool:
        asked.append(1)
        return len(asked) > 2

    assert scene.learn(algorithm, of, path, is_stopping=is_stopping) == (0, False)
    assert len(asked) == 3, "two parts of many"
    for then, now in zip(before, algorithm.parameters(), strict=True):
        assert torch.equal(then, now)


@pytest.mark.parametrize(
    ("statistics", "error", "message"),
    [
        ({"mine": 0.5}, TypeError, "Mine reports a float as the statistic 'mine' of a loss; report a scalar tensor"),
        ({"mine": torch.zeros(2)}, TypeError, r"a tensor of shape \(2,\) as the statistic 'mine'"),
        ({str(i): torch.zeros(()) for i in range(33)}, ValueError, "33 statistics of a loss; report 32 at most"),
    ],
)
def test_wrong_statistics_of_a_loss_are_named(statistics: Any, error: type[Exception], message: str) -> None:
    class Mine(PPO):
        def loss(self, *arguments: Any, **named: Any) -> Loss:
            return super().loss(*arguments, **named)._replace(statistics=statistics)

    scene, of = Scene(), config(epochs=1, minibatches=1)
    algorithm = Mine(SPEC.observation, SPEC.action, scene.model_config, of)
    with pytest.raises(error, match=message):
        scene.learn(algorithm, of, FastPath(precision="fp32", micro_batch=64, channels_last=False))


def test_minibatches_and_epochs_count_sgd_steps() -> None:
    Scene().step(config(epochs=2, minibatches=3))


def test_non_finite_observation_raises() -> None:
    scene = Scene()
    scene.store.observation["obs"][0, 0, 0] = np.nan
    scene.batch.arrays["valid"][0, 0] = True
    with pytest.raises(
        NonFiniteGradientError, match=r"not finite: observation 'obs', loss/policy, .*loss/gradient_norm"
    ):
        scene.step(config())


def test_pieces_of_a_vtrace_minibatch_are_normalised_by_the_previous_one() -> None:
    """Whole minibatches use their own moments; pieces use those of the previous minibatch."""
    scene = Scene()
    of = config(advantage="vtrace", minibatches=1, epochs=2)
    first, second = scene.step(of, micro_batch=2 * T), scene.step(of, micro_batch=2 * T)
    assert_same(first, second)


@pytest.mark.parametrize(("micro_batch", "kept"), [(2, [5.0, 0.0, 9.0]), (10**6, [1.0, 0.0, 0.0])])
def test_a_minibatch_of_one_sample_does_not_normalise_the_next_one(micro_batch: int, kept: list[float]) -> None:
    scene = Scene()
    of = config(advantage="vtrace", minibatches=1)
    path = FastPath(precision="fp32", micro_batch=micro_batch, channels_last=False)
    cut = Minibatches(scene.algorithm(of), scene.store.observation, path, np.random.default_rng(0))
    coefficients = scene.algorithm(of).coefficients({"clip_range": of.clip_range, "entropy_coef": of.entropy_weight})
    for _ in cut.of(scene.batch, targets_of(scene, of), scene.batch.arrays["valid"], coefficients):
        cut.keep_moments(torch.tensor([5.0, 0.0, 9.0]))
        cut.keep_moments(torch.tensor([1.0, 0.0, 0.0]))
    assert cut.previous_moments is not None
    # Where minibatches are whole, each has its own moments.
    assert cut.previous_moments.tolist() == kept


@pytest.mark.parametrize(("core", "advantage"), [("none", "gae"), ("gru", "gae"), ("none", "vtrace")])
def test_batch_without_valid_samples_makes_no_step(core: str, advantage: str) -> None:
    scene = Scene(core=core)
    of = config(advantage=advantage, minibatches=2)
    path = FastPath(precision="fp32", micro_batch=10**6, channels_last=False)
    keep = np.zeros_like(scene.batch.arrays["valid"])
    assert scene.learn(scene.algorithm(of), of, path, keep=keep) == (0, True)


def test_vtrace_updates_the_return_normaliser() -> None:
    scene = Scene()
    of = config(advantage="vtrace")
    assert targets_of(scene, of).return_ is None
    normalised = ModelConfig(mlp_sizes=(16,), normalise_returns=True)
    algorithm = PPO(SPEC.observation, SPEC.action, normalised, of)
    targets = algorithm.prepare(scene.batch.arrays, value_mean=0.0, value_std=1.0)
    assert targets.advantage is None
    assert targets.return_ is not None
    expected = targets_of(scene, config(gae_lambda=1.0)).return_
    assert expected is not None
    np.testing.assert_allclose(targets.return_, expected, rtol=1e-6)


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("normalise", [False, True])
def test_on_policy_v_trace_learns_what_gae_learns(core: str, normalise: bool) -> None:
    scene = Scene(core=core)
    arrays, model = scene.batch.arrays, scene.initial
    # Stored values and log-probabilities are those of the learning network.
    observation = torch.from_numpy(scene.store.observation["obs"].reshape(-1, 5)[scene.batch.observation_index])
    state = arrays.get("rnn_state")
    with torch.no_grad():
        output = model.unroll(
            {"obs": observation},
            None if state is None else torch.from_numpy(state),
            torch.from_numpy(arrays["reset"]),
            np.flatnonzero(arrays["reset"].any(axis=1)).tolist(),
        )
        arrays["value"][...] = output.value.numpy()
        arrays["log_prob"][...] = model.distribution.log_prob(
            output.params[:T],
            torch.from_numpy(arrays["action_discrete"]),
            torch.from_numpy(arrays["action_continuous"]),
            torch.from_numpy(arrays["action_mask"][:T]),
        ).numpy()
    gae = scene.step(config(advantage="gae", gae_lambda=0.9, normalise_advantages=normalise))
    assert_same(gae, scene.step(config(advantage="vtrace", vtrace_lambda=0.9, normalise_advantages=normalise)))


def test_means_are_those_of_all_steps_that_have_a_number() -> None:
    means = _Means()
    for names, values in ((("q",), [1.0]), (("q", "actor"), [2.0, 5.0]), (("q",), [6.0])):
        means.add(names, torch.tensor(values))
    assert (means.last("q"), means.last("actor"), means.last("none")) == (6.0, 5.0, None)
    assert means.take() == {"q": 3.0, "actor": 5.0}
    assert means.take() == {}

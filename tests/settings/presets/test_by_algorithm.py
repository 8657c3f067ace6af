"""Settings of an algorithm, of lockstep and of a protocol, and names that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmill.algorithms import registry
from rollmill.algorithms.dqn import DQN
from rollmill.algorithms.ppo import PPO
from rollmill.api import make_config
from rollmill.settings.options import apply
from rollmill.settings.presets.by_algorithm import (
    ALGORITHMS,
    PROTOCOLS,
    UnknownChoiceError,
    algorithm_overrides,
    lockstep_overrides,
    protocol_overrides,
)
from rollmill.settings.presets.off_policy import off_policy_overrides


def test_values_of_atari_are_those_of_cleanbas_tables():
    # arXiv:2310.00036: PPO and IMPALA; sums over 32 x 20 samples became means.
    ppo, impala = (algorithm_overrides(name, "atari/pong") for name in ("ppo", "impala"))
    assert (ppo["learner.learning_rate"], ppo["learner.clip_range"], ppo["learner.epochs"]) == (2.5e-4, 0.1, 4)
    assert (impala["learner.learning_rate"], impala["learner.rmsprop_alpha"]) == (6e-4, 0.99)
    assert impala["learner.max_grad_norm"] == pytest.approx(40 / 640)
    assert impala["learner.rmsprop_eps"] == pytest.approx(0.01 / 640)
    for overrides in (ppo, impala):
        assert overrides["learner.batch_size"] == overrides["num_envs"] * overrides["rollout_length"]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "preset", ["atari/pong", "gym/CartPole-v1", "mujoco/Hopper-v5", "minigrid/MiniGrid-Empty-5x5-v0"]
)
def test_they_fit_every_family_and_leave_the_network(name, preset):
    before = make_config(preset)
    config = apply(before, dict(algorithm_overrides(name, preset)))
    assert config.model == before.model
    assert config.on_policy.advantage == ("vtrace" if name == "impala" else "gae")
    assert config.on_policy.clip_kind == ("none" if name == "impala" else "symmetric")


def test_ppo_and_impala_have_cleanbas_sizes_in_atari_alone():
    for name in ("atari/pong", "envpool/Pong-v5"):
        assert make_config(name, algo="ppo").on_policy.batch_size == 16_384
        assert make_config(name, algo="impala").on_policy.batch_size == 2_560
    own = make_config("gym/Acrobot-v1")
    assert make_config("gym/Acrobot-v1", algo="ppo") == own
    assert make_config("gym/HalfCheetah-v5", algo="ppo").on_policy.clip_kind == "symmetric"
    impala = make_config("gym/Acrobot-v1", algo="impala")
    assert (impala.on_policy.batch_size, impala.num_envs, impala.on_policy.advantage) == (640, 32, "vtrace")


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
def test_off_policy_algorithms_have_settings_of_their_own(name):
    assert algorithm_overrides(name, "gym/Pendulum-v1") == off_policy_overrides(name, "gym/Pendulum-v1")


def test_registered_algorithms_get_ppos_or_dqns_settings(monkeypatch):
    monkeypatch.setattr(registry.ALGORITHMS, "factories", dict(registry.ALGORITHMS.factories))
    monkeypatch.setattr(registry, "_on_policy", set(registry._on_policy))
    registry.register_algorithm("own_ppo", PPO)
    registry.register_algorithm("own_dqn", DQN)
    for preset in ("atari/pong", "gym/CartPole-v1"):
        ppo = algorithm_overrides("ppo", preset)
        assert algorithm_overrides("own_ppo", preset) == {**ppo, "learner.algorithm": "own_ppo"}
        dqn = algorithm_overrides("dqn", preset)
        assert algorithm_overrides("own_dqn", preset) == {**dqn, "off_policy.algorithm": "own_dqn"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ppoo",
            r"^algo='ppoo': choose one of ppo, impala, dqn, ddpg, td3, sac; did you mean ppo\?; one",
        ),
        ("zzz", "^algo='zzz': choose one of ppo, impala, dqn, ddpg, td3, sac; one of your own has to be registered"),
        ("PPO", "^algo='PPO': choose one of"),
        (PPO, "^algo=<class .*: give a name, one of ppo, impala"),
        (None, "^algo=None: give a name"),
    ],
)
def test_unknown_algorithms_are_refused(name, message):
    with pytest.raises(UnknownChoiceError, match=message):
        algorithm_overrides(name, "gym/CartPole-v1")


# --------------------------------------------------------------------------------------------------------- protocols


def test_machados_protocol_is_the_papers():
    config = apply(make_config("atari/pong"), dict(protocol_overrides("machado", "atari/pong")))
    atari = config.env.atari
    assert (atari.sticky_actions, atari.full_action_space, atari.life_loss) == (0.25, True, False)
    assert atari.max_frames == 30 * 60 * 60  # Half an hour at 60 frames a second.
    assert set(PROTOCOLS) == {"machado"}


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        ("mnih", "atari/pong", "^protocol='mnih': choose machado, or none for the preset's own$"),
        ("machado", "gym/CartPole-v1", r"^protocol='machado' with gym/CartPole-v1: it is one of Atari games \(atari/"),
        ("machado", "envpool/Pong-v5", "^protocol='machado' with envpool/Pong-v5"),
    ],
)
def test_protocols_that_do_not_apply_are_refused(name, preset, message):
    with pytest.raises(UnknownChoiceError, match=message):
        protocol_overrides(name, preset)


# ---------------------------------------------------------------------------------------------------------- lockstep


@pytest.mark.parametrize(
    ("num_envs", "rollout_length", "minibatch_size", "batch_size", "minibatches"),
    [
        (32, 64, 128, 2048, 16),
        (64, 32, 128, 2048, 16),
        (8, 16, 100, 128, 1),
        (10, 10, 30, 100, 2),  # Three would cut trajectories.
        (7, 100, 100, 700, 7),
        (7, 100, 200, 700, 1),
        (4, 128, 1, 512, 4),  # Not more than trajectories.
        (0, 0, 64, 1, 1),  # Refused later, by name.
    ],
)
def test_a_batch_of_lockstep_is_a_rollout_of_every_environment(
    num_envs, rollout_length, minibatch_size, batch_size, minibatches
):
    found = lockstep_overrides(num_envs=num_envs, rollout_length=rollout_length, minibatch_size=minibatch_size)
    assert found["learner.batch_size"] == batch_size
    assert found["learner.minibatches"] == minibatches
    assert max(1, num_envs) % minibatches == 0
    assert (found["checkpoint.every_s"], found["checkpoint.every_steps"]) == (None, 1_000_000)


def test_a_policy_may_have_the_settings_of_another_algorithm():
    given = {
        "population.policies": ("x", "y"),
        "policy.x.algo": "impala",
        "policy.x.learner.learning_rate": 1e-3,
        "policy.y.learner.discount": 0.9,
    }
    run = make_config("gym/CartPole-v1", given)
    x, y = run.policies
    assert (x.on_policy.advantage, x.on_policy.clip_kind, x.optimiser.method.kind) == ("vtrace", "none", "rmsprop")
    assert x.optimiser.learning_rate == 1e-3
    assert (x.on_policy.batch_size, x.on_policy.minibatches) == (run.on_policy.batch_size, run.on_policy.minibatches)
    assert y.on_policy == replace(run.on_policy, discount=0.9)
    for algo, name in ((None, "dqn"), ("dqn", "impala")):
        with pytest.raises(UnknownChoiceError, match=rf"policy.x.algo='{name}': choose ppo, impala"):
            make_config("gym/CartPole-v1", {**given, "policy.x.algo": name}, algo=algo)
    with pytest.raises(UnknownChoiceError, match=r"algo='impal': choose one of .* did you mean impala"):
        make_config("gym/CartPole-v1", {**given, "policy.x.algo": "impal"})


def test_a_policy_may_have_ppo_in_a_run_of_another_algorithm():
    given = {"population.policies": ("x", "y"), "policy.x.algo": "ppo"}
    alone = make_config("gym/LunarLander-v3")
    run = make_config("gym/LunarLander-v3", given, algo="impala")
    x, y = run.policies
    sizes = {"batch_size": run.on_policy.batch_size, "minibatches": run.on_policy.minibatches}
    assert x.on_policy == replace(alone.on_policy, **sizes)
    assert x.optimiser == alone.optimiser
    assert (y.on_policy, y.optimiser) == (run.on_policy, run.optimiser)

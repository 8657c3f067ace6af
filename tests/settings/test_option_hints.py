"""Other libraries' names of settings: what is said of them, on the command line and in Python."""

from __future__ import annotations

import re

import pytest

import rollmill
from rollmill.cli import main
from rollmill.envs.config import EnvConfig
from rollmill.settings.config import Config
from rollmill.settings.option_hints import HINTS, hints_for
from rollmill.settings.option_list import list_options
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import apply, flatten
from rollmill.settings.value_checks import ConfigError

KEYS = {option.key for option in list_options(Config)}

# Foreign name -> the setting that a message must name first.
EXPECTED = {
    # Stable-Baselines3 and its zoo
    "n_steps": "rollout_length",
    "n_epochs": "learner.epochs",
    "ent_coef": "learner.entropy_coef",
    "vf_coef": "learner.value_coef",
    "clip_range_vf": "learner.value_clip",
    "net_arch": "model.mlp_sizes",
    "buffer_size": "replay.capacity",
    "learning_starts": "replay.min_size",
    "warmup": "replay.min_size",
    "beta1": "learner.adam_betas",
    "b2": "learner.adam_betas",
    "train_freq": "replay.update_interval",
    "exploration_fraction": "off_policy.epsilon_fraction",
    "exploration_final_eps": "off_policy.epsilon_end",
    "target_update_interval": "off_policy.target_update_every",
    "total_timesteps": "total_steps",
    "n_envs": "num_envs",
    "target_kl": "learner.kl_target",
    "normalize_advantage": "learner.normalise_advantages",
    "tensorboard_log": "run_dir",
    "eval_freq": "eval_every",
    # CleanRL
    "num_steps": "rollout_length",
    "update_epochs": "learner.epochs",
    "num_minibatches": "learner.minibatches",
    "anneal_lr": "learner.schedule",
    "clip_coef": "learner.clip_range",
    "clip_vloss": "learner.value_clip",
    "env_id": "PRESET",
    "cuda": "learner.device",
    "policy_lr": "off_policy.actor_learning_rate",
    "start_e": "off_policy.epsilon_start",
    "target_network_frequency": "off_policy.target_update_every",
    # RLlib
    "lr": "learner.learning_rate",
    "lambda_": "learner.gae_lambda",
    "clip_param": "learner.clip_range",
    "num_workers": "rollout.num_workers",
    "num_env_runners": "rollout.num_workers",
    "train_batch_size": "learner.batch_size",
    "sgd_minibatch_size": "learner.minibatches",
    "num_sgd_iter": "learner.epochs",
    "rollout_fragment_length": "rollout_length",
    "fcnet_hiddens": "model.mlp_sizes",
    "grad_clip": "learner.max_grad_norm",
    "num_gpus": "learner.device",
    # Sample Factory
    "rollout": "rollout_length",
    "train_for_env_steps": "total_steps",
    "exploration_loss_coeff": "learner.entropy_coef",
    "ppo_clip_ratio": "learner.clip_range",
    "worker_num_splits": "rollout.groups_per_worker",
    "use_rnn": "model.core",
    "rnn_size": "model.core_size",
    "with_vtrace": "learner.advantage",
    # TorchRL
    "optim.lr": "learner.learning_rate",
    "loss.gamma": "learner.discount",
    "loss.clip_epsilon": "learner.clip_range",
    "collector.frames_per_batch": "learner.batch_size",
    "collector.total_frames": "total_steps",
    "buffer.size": "replay.capacity",
    "init_random_frames": "replay.min_size",
    "lmbda": "learner.gae_lambda",
    # and what papers and others say
    "gamma": "learner.discount",
    "lam": "learner.gae_lambda",
    "clip": "learner.clip_range",
    "hidden_sizes": "model.mlp_sizes",
    "hidden_dim": "model.mlp_sizes",
    "device": "learner.device",
    "optimizer": "learner.optimiser",
    "polyak": "off_policy.tau",
    "env": "PRESET",
    "exploration_fractoin": "off_policy.epsilon_fraction",
    "total_timestep": "total_steps",
}

# Names that are also ours: the only key with this last part is set.
OURS = {
    "learning_rate": ("learner.learning_rate", 0.5),
    "gae_lambda": ("learner.gae_lambda", 0.5),
    "clip_range": ("learner.clip_range", 0.5),
    "max_grad_norm": ("learner.max_grad_norm", 0.5),
    "batch_size": ("learner.batch_size", 2048),
    "tau": ("off_policy.tau", 0.5),
    "seed": ("seed", 5),
    "num_envs": ("num_envs", 8),
    "n_step": ("replay.n_step", 3),
}


def test_every_hint_names_a_setting_and_no_key_of_ours() -> None:
    named = {hint.key for hints in HINTS.values() for hint in hints}
    assert named - KEYS == {"PRESET", "run_dir", "algo"}
    # Except for ambiguous names, and groups of settings, which have no value.
    lasts = [key.rpartition(".")[2] for key in KEYS]
    assert [name for name in HINTS if name in KEYS or lasts.count(name) == 1] == []
    assert HINTS["learning_starts"][1].key == "off_policy.random_steps"
    assert hints_for("no_such_name", cutoff=0.8) == ()


@pytest.mark.parametrize(("name", "key"), EXPECTED.items())
def test_a_foreign_name_is_translated(name: str, key: str) -> None:
    with pytest.raises(OptionError) as caught:
        apply(Config(env=EnvConfig(name="gym/CartPole-v1")), {name: 1})
    assert repr(name) in str(caught.value) or str(caught.value).startswith(f"{name} is a group of settings")
    named = re.search(r"(?:here it is|in other libraries is|did you mean) ([\w.]+)", str(caught.value))
    assert named is not None
    assert named[1] == key


def test_the_entropy_coefficient_of_sac_is_a_temperature() -> None:
    said = r"here it is learner\.entropy_coef or off_policy\.temperature \(SAC's\)$"
    with pytest.raises(OptionError, match=said):
        rollmill.make_config("gym/Pendulum-v1", {"ent_coef": "auto"}, algo="sac")


def test_the_interval_between_updates_counts_steps_of_all_environments() -> None:
    with pytest.raises(OptionError, match=r"agent steps for each SGD step: train_freq x num_envs / gradient_steps"):
        rollmill.make_config("gym/Pendulum-v1", {"train_freq": 4}, algo="sac")


@pytest.mark.parametrize("name", ["lr", "n_steps", "device"])
def test_python_and_the_command_line_say_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError) as caught:
        rollmill.train("gym/CartPole-v1", **{name: 1})  # type: ignore[arg-type]
    assert main(["train", "gym/CartPole-v1", f"--{name.replace('_', '-')}", "1"]) == 2
    assert capsys.readouterr().err == f"rollmill: {caught.value}\n"


@pytest.mark.parametrize(("name", "key", "value"), [(name, *pair) for name, pair in OURS.items()])
def test_a_name_that_is_ours_sets_the_only_key_that_ends_so(name: str, key: str, value: object) -> None:
    algo = "td3" if name in ("tau", "n_step") else None
    config = rollmill.make_config("gym/Pendulum-v1", {name: value}, algo=algo)
    assert flatten(config)[key] == value


@pytest.mark.parametrize(
    ("algo", "name", "meant"),
    [("sac", "alpha", "off_policy.temperature"), ("dqn", "epsilon", "off_policy.epsilon_start")],
)
def test_a_name_that_would_set_what_has_no_effect_is_refused(algo: str, name: str, meant: str) -> None:
    env = {"sac": "gym/Pendulum-v1", "dqn": "gym/CartPole-v1"}[algo]
    with pytest.raises(ConfigError, match=f"replay.{name}: without effect with replay.priorities='uniform'.*{meant}"):
        rollmill.make_config(env, {name: 0.1}, algo=algo)
    given = {name: 0.1, "replay.priorities": "proportional"}
    assert getattr(rollmill.make_config(env, given, algo=algo).replay, name) == 0.1

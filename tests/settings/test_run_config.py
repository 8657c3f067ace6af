"""The configuration in a run's directory: the script that it names, and what a resumed run may change."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest

import rollmill
from rollmill.envs import registry
from rollmill.settings.run_config import load_config, write_config
from rollmill.settings.run_directory import RunDirectoryError


@pytest.mark.parametrize("is_ours", [False, True])
def test_the_users_script_is_imported_and_no_module_of_rollmill(
    is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    rollmill.register_env("my/poles", lambda: gymnasium.make("CartPole-v1"))
    script = Path(rollmill.__file__ or "").parent / "ring.py" if is_ours else tmp_path / "train.py"
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    write_config(tmp_path, rollmill.make_config("my/poles"))
    assert load_config(tmp_path).env.imports == (() if is_ours else (str(script),))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env.name", "gym/Acrobot-v1"),
        ("env.atari.frame_stack", 1),
        ("env.vizdoom.measurements", True),
        ("env.vizdoom.sound", True),
        ("env.dmlab.extended_actions", True),
    ],
)
def test_a_resume_in_another_environment_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", {"env.kwargs": {"size": 3}}))
    with pytest.raises(RunDirectoryError, match=rf"cannot be resumed with another {name}: .*start a new run"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("off_policy.algorithm", "ddpg"),
        ("off_policy.num_critics", 3),
        ("off_policy.temperature", 0.2),
    ],
)
def test_a_resume_with_another_off_policy_network_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write_config(tmp_path, rollmill.make_config("gym/Pendulum-v1", algo="sac"))
    with pytest.raises(RunDirectoryError, match=rf"cannot be resumed with another {name}: .*start a new run"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **{name: value})


def test_a_resume_of_dqn_with_another_network_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", algo="dqn"))
    with pytest.raises(RunDirectoryError, match=r"cannot be resumed with another off_policy\.dueling: "):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, dueling=True)


def test_a_resume_with_another_number_of_guests_is_refused(tmp_path: Path) -> None:
    config = rollmill.make_config("envpool/ConnectFour-v1", {"population.guests": "random"})
    write_config(tmp_path, config)
    with pytest.raises(RunDirectoryError, match=r"with another number of population\.guests: "):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, guests="random,other=random")


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"model.mlp_sizes": (32,)}, "model.mlp_sizes: .* were made with model.mlp_sizes=64,64; keep that"),
        (
            {"policy.b.model.mlp_sizes": (32,)},
            "policy.b.model.mlp_sizes: .* were made with policy.b.model.mlp_sizes=16; keep that",
        ),
        (
            {"policy.b.learner.freeze": "encoder"},
            "policy.b.learner.freeze: .* were made with policy.b.learner.freeze=; keep that",
        ),
        ({"policy.b.learner.optimiser": "rmsprop"}, "policy.b.learner.optimiser: .* policy.b.learner.optimiser=adam;"),
        ({"policy.b.load": "runs/old"}, "policy.b.load: .* were made with policy.b.load=none; keep that"),
        (
            {"model.core": "gru", "model.dense_size": 9},
            "model.dense_size, model.core: .* with model.dense_size=none, model.core",
        ),
    ],
)
def test_a_resume_with_another_network_names_the_old_values(
    tmp_path: Path, settings: dict[str, object], changed: str
) -> None:
    of_policies = {"population.policies": "a,b", "policy.b.model.mlp_sizes": (16,)}
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", of_policies))
    with pytest.raises(RunDirectoryError, match=rf"cannot be resumed with another {changed}"):
        rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **settings)

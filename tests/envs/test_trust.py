"""Foreign run directories, whose files would execute code, and the user's own signed runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.cli import main
from rollmill.envs.config import DmlabOptions, EnvConfig, VizdoomOptions
from rollmill.envs.trust import named_code
from rollmill.runtime import signatures
from rollmill.runtime.arena import NotEnoughMemory
from rollmill.runtime.plain_data import encode
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import UntrustedError, signed
from rollmill.settings.options import to_json
from rollmill.settings.run_config import load_config, load_trusted, write_config
from rollmill.settings.run_directory import RunDirectoryError

TINY = {
    "num_envs": 2,
    "rollout_length": 8,
    "learner.batch_size": 16,
    "learner.minibatches": 1,
    "learner.epochs": 1,
    "learner.precision": "fp32",
    "inference.precision": "fp32",
    "rollout.num_workers": 1,
}
MODULE = """
import gymnasium, pathlib
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

pathlib.Path({marker!r}).touch()
gymnasium.register("Stranger-v0", CartPoleEnv)
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # main changes it; restored after the test.


def foreign_run(folder: Path, **env: Any) -> Path:
    """Create a run of CartPole's network whose configuration names another environment."""
    import torch

    from rollmill.envs.factory import probe
    from rollmill.models.registry import make_model
    from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

    config = rollmill.make_config("gym/CartPole-v1", TINY)
    folder.mkdir()
    content = to_json(config)
    assert isinstance(content["env"], dict)
    content["env"].update(env)
    (folder / "config.json").write_text(json.dumps(content))
    spec = probe(config.env)
    torch.manual_seed(0)
    network = make_model(spec.observation, spec.action, config.model)
    CheckpointStore(folder / "checkpoints", CheckpointConfig()).save(
        {"model": network.state_dict(), "counters": {"agent_steps": 7}}, agent_steps=7
    )
    return folder


def attacks(marker: Path) -> dict[str, dict[str, Any]]:
    return {
        "name": {"name": "os:system", "kwargs": {"command": f"touch {marker}"}},
        "imports": {"imports": ["stranger.py"]},
        "gymnasium": {"name": "gym/stranger:Stranger-v0"},
        "argument": {"name": "gym/CartPole-v1", "imports": ["stranger"]},
    }


@pytest.mark.parametrize("attack", ["name", "imports", "gymnasium", "argument"])
@pytest.mark.parametrize(
    "command",
    [
        ["eval", "theirs", "--episodes", "1"],
        ["watch", "theirs", "--video", "a.mp4"],
        ["train", "--resume", "--run-dir", "theirs", "--total-steps", "100", "--quiet"],
    ],
)
def test_foreign_run_executes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], attack: str, command: list[str]
) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "stranger.py").write_text(MODULE.format(marker=str(marker)))
    foreign_run(tmp_path / "theirs", **attacks(marker)[attack])
    assert main(command) == 2
    assert not marker.exists()
    assert "--trust" in capsys.readouterr().err
    assert load_config("theirs").on_policy.batch_size == 16  # Data can be read.


@pytest.mark.parametrize("name", ["config.json.new", "rank-1", "checkpoints/aside", "run.log"])
def test_resumed_foreign_run_does_not_follow_links(tmp_path: Path, name: str) -> None:
    run_dir = foreign_run(tmp_path / "theirs", kwargs={"sutton_barto_reward": True})
    (run_dir / name).symlink_to(tmp_path / "profile")
    again = {"run_dir": run_dir, "resume": True, "quiet": True, "total_steps": 100}
    with pytest.raises(UntrustedError, match=rf"{run_dir / name} is a link or a device, .*has no signature.*--trust"):
        rollmill.train(**again)
    assert not (tmp_path / "profile").exists()
    assert load_trusted(run_dir, trust=True).num_envs == 2
    if name != "config.json.new":
        write_config(run_dir, load_config(run_dir))
        assert load_trusted(run_dir, trust=False).num_envs == 2, "in one's own runs links are allowed"


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ({"wandb_project": "theirs"}, r"reports the run to a service \(tracker=wandb\)"),
        ({"tracker": ["tensorboard", "mlflow"]}, r"reports the run to a service \(tracker=mlflow\)"),
        ({"tracking": {"mlflow_uri": "http://theirs"}}, r"service \(tracking.mlflow_uri=http://theirs\)"),
    ],
)
def test_resumed_foreign_run_reports_to_no_tracker(tmp_path: Path, saved: dict[str, Any], reason: str) -> None:
    run_dir = foreign_run(tmp_path / "theirs")
    content = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps({**content, **saved}))
    with pytest.raises(UntrustedError, match=reason):
        load_trusted(run_dir, trust=False)
    assert load_trusted(run_dir, trust=True).tracking.reports_to


def test_pipe_as_configuration_raises_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(RunDirectoryError, match=r"config\.json is not a regular file"):
        load_config(tmp_path)


def test_trusted_foreign_run_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "stranger_who_is_trusted.py").write_text(MODULE.format(marker=str(marker)))
    run_dir = foreign_run(tmp_path / "theirs", imports=["stranger_who_is_trusted.py"])
    with pytest.raises(UntrustedError, match="it has no signature"):
        rollmill.evaluate(run_dir, episodes=1)
    assert not marker.exists()
    assert main(["eval", "theirs", "--episodes", "1", "--trust"]) == 0
    assert marker.exists()


def test_built_in_environment_needs_no_trust_and_imports_nothing_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = foreign_run(tmp_path / "theirs", kwargs={"sutton_barto_reward": True})
    monkeypatch.chdir(run_dir)
    assert main(["eval", ".", "--episodes", "1"]) == 0
    assert str(run_dir) not in sys.path
    assert rollmill.load(run_dir).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_processes_of_a_resumed_run_import_nothing_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = foreign_run(tmp_path / "theirs")
    for name in ("multiprocessing", "rollmill", "gymnasium", "signal"):
        (run_dir / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()")
    monkeypatch.chdir(run_dir)
    assert (
        main(["train", "--resume", "--run-dir", ".", "--total-steps", "100", "--quiet"]) == 1
    )  # The checkpoint has no optimiser.
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"name": "os:system"}, "names the environment 'os:system'"),
        ({"name": "gym/os:Env-v0"}, "names the environment"),
        ({"name": "mujoco/os:Env-v0"}, "names the environment"),
        ({"name": "os:Env-v0"}, "names the environment"),
        ({"name": "gym/NoSuchThing-v0"}, "names the environment"),
        ({"name": "gym/ForTheTest-v0"}, "names the environment"),
        ({"name": "for/the-test"}, "names the environment"),
        ({"name": "atari/os:system"}, "names the environment"),
        ({"name": "gym/CartPole-v1", "imports": ("os",)}, "imports os"),
        ({"name": "vizdoom/basic", "kwargs": {"config_file": "/tmp/a.cfg"}}, "the argument config_file="),
        ({"name": "vizdoom/basic", "kwargs": {"settings": {"doom_game_path": "a"}}}, "the argument settings="),
        ({"name": "gym/CartPole-v1", "kwargs": {"a": [1]}}, "the argument a="),
        ({"name": "gym/CartPole-v1"}, ""),
        ({"name": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}}, ""),
        ({"name": "mujoco/HalfCheetah-v5", "kwargs": {"ctrl_cost_weight": 0.2}}, ""),
        ({"name": "atari/pong", "kwargs": {"img_height": 20}}, ""),
        (
            {"name": "dmlab/rooms_watermaze", "dmlab": DmlabOptions(level_cache="/tmp/maps")},
            "files from '/tmp/maps'",
        ),
        (
            {"name": "dmlab/psychlab_x", "dmlab": DmlabOptions(dataset_path="/tmp/pictures")},
            "files from '/tmp/pictures' (env.dmlab.dataset_path)",
        ),
        ({"name": "vizdoom/duel", "vizdoom": VizdoomOptions(wad="a/x.pk3")}, "files from 'a/x.pk3' (env.vizdoom.wad)"),
        ({"name": "vizdoom/duel", "vizdoom": VizdoomOptions(wad="arena")}, ""),
        ({"name": "dmlab/rooms_watermaze", "kwargs": {"settings": {"levelDirectory": "a"}}}, "the argument settings="),
        ({"name": "dmlab/rooms_watermaze", "dmlab": DmlabOptions(width=40)}, ""),
        ({"name": "vizdoom/basic"}, ""),
        ({"name": "minigrid/MiniGrid-DoorKey-5x5-v0", "kwargs": {"direction": False}}, ""),
        ({"name": "envpool/Pong-v5"}, ""),
        ({"name": "gym/ALE/Pong-v5"}, ""),
    ],
)
def test_named_code_describes_the_part_that_runs_code(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, Any], part: str
) -> None:
    import gymnasium
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    rollmill.register_env("for/the-test", CartPoleEnv)
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.registry", gymnasium.envs.registration.registry)
    if "ForTheTest" in env["name"]:
        gymnasium.register("ForTheTest-v0", "os:system")
    code = named_code(EnvConfig(**env))
    assert part in code if part else not code


def test_signed_run_can_be_moved_but_not_edited(tmp_path: Path) -> None:
    (tmp_path / "mine_alone.py").write_text("from gymnasium.envs.classic_control.cartpole import CartPoleEnv as Mine\n")
    sys.path.insert(0, str(tmp_path))
    run_dir = foreign_run(tmp_path / "mine")
    write_config(run_dir, replace(load_config(run_dir), env=EnvConfig(name="mine_alone:Mine")))
    moved = shutil.move(run_dir, tmp_path / "elsewhere")
    assert len(rollmill.evaluate(moved, episodes=2).returns) == 2
    path = Path(moved) / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, sort_keys=True))  # Same content, formatted differently.
    assert len(rollmill.evaluate(moved, episodes=2).returns) == 2
    content["env"]["max_episode_steps"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(UntrustedError, match=r"changed after a run of this user wrote it.*--trust"):
        rollmill.evaluate(moved, episodes=2)
    assert rollmill.evaluate(moved, episodes=2, trust=True).lengths == (3, 3)


class Attack:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.slow
def test_changed_lockstep_checkpoint_is_not_unpickled(tmp_path: Path) -> None:
    import torch

    from rollmill.learning.in_flight import InFlight
    from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
    from rollmill.storage.group_states import GroupState

    settings = {
        **TINY,
        "regime": "lockstep",
        "total_steps": 48,
        "quiet": True,
        "run_dir": "mine",
        "checkpoint.every_steps": 16,
    }
    run = rollmill.train("gym/CartPole-v1", **settings)
    again = {"resume": True, "quiet": True, "total_steps": 80, "run_dir": run.dir}
    store = CheckpointStore(run.dir / "checkpoints", CheckpointConfig())
    state = store.load_latest(to_resume=True).state
    in_flight = InFlight.unpack(state)
    first, verdict = GroupState.unpack(in_flight.groups[0])
    assert verdict is Verdict.VALID
    assert first.environments is not None
    attack = encode((pickle.dumps(Attack(tmp_path / "marker")), dict(first.first), first.rnn_state, None))
    # Rank 0 signs the gathered states, but not the data of other machines.
    state["in_flight"] = in_flight._replace(groups=[attack, *in_flight.groups[1:]]).pack()
    store.save(state, agent_steps=48)
    with pytest.raises(ValueError, match=r"it holds pickled environments.*it has no signature.*--trust"):
        rollmill.train(**again)
    state["in_flight"]["groups"][0] = torch.frombuffer(bytearray(attack + b"changed"), dtype=torch.uint8)
    store.save(state, agent_steps=48)
    with pytest.raises(ValueError, match=r"it holds pickled environments.*it was changed after.*--trust"):
        rollmill.train(**again)
    assert not (tmp_path / "marker").exists()
    with pytest.raises(ValueError, match="the checkpoint is from another version"):
        rollmill.train(**again, trust=True)
    state["in_flight"]["groups"][0] = torch.frombuffer(bytearray(attack), dtype=torch.uint8)
    store.save(state, agent_steps=48)
    with pytest.raises(Exception, match="rollout worker"):
        rollmill.train(**again, trust=True)
    assert (tmp_path / "marker").exists()
    # A foreign run: neither is signed.
    content = json.loads((run.dir / "config.json").read_text())
    del content["signature"]
    (run.dir / "config.json").write_text(json.dumps(content))
    with pytest.raises(UntrustedError, match="checkpoints of runs in lockstep hold pickled environments"):
        rollmill.train(**again)


def test_a_file_of_settings_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "stranger_of_settings.py").write_text(MODULE.format(marker=str(marker)))
    path = tmp_path / "settings.json"
    for settings in (
        {"env.imports": ["stranger_of_settings"]},
        {"imports": "stranger_of_settings"},
        {"env.name": "os:system"},
        {"env": {"name": "os:system"}},
        {"env.kwargs": {"command": "touch marker"}},
        {"env.kwargs.command": "touch marker"},
        {"env.vizdoom.wad": "x.pk3"},
        {"tracker": "tensorboard,mlflow"},
        {"tracking.mlflow_uri": "http://stranger"},
    ):
        path.write_text(json.dumps(settings))
        assert main(["train", "gym/CartPole-v1", "--settings", "settings.json", "--quiet"]) == 2
        assert "--trust" in capsys.readouterr().err
        assert not marker.exists()
    path.write_text(json.dumps(signed({"env.imports": ["stranger_of_settings"], "no_such_setting": 1})))
    assert main(["train", "gym/CartPole-v1", "--settings", "settings.json", "--quiet"]) == 2
    assert "unknown setting 'no_such_setting'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"model": {}}, "'counters'"),
        ({"counters": {"agent_steps": 7}}, "'model'"),
        ({"model": "x", "counters": {"agent_steps": 7}}, "its model is a str"),
        ({"model": {}, "counters": [7]}, "list indices"),
        ({"model": {}, "counters": {"agent_steps": "many"}}, "'many'"),
        ({"model": {}, "counters": {"agent_steps": 7}}, "does not fit 'gym/CartPole-v1'"),
        ({"model": {7: 8}, "counters": {"agent_steps": 7}}, "does not fit 'gym/CartPole-v1'"),
    ],
)
def test_invalid_checkpoint_content_raises_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: dict[str, Any], says: str
) -> None:
    from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

    run_dir = foreign_run(tmp_path / "theirs")
    shutil.rmtree(run_dir / "checkpoints")
    CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).save(state, agent_steps=7)
    assert main(["eval", "theirs", "--episodes", "1"]) != 0
    error = capsys.readouterr().err
    assert says in error
    assert "theirs/checkpoints/checkpoint_" in error


def test_checkpoint_with_code_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.storage import checkpoint_file

    run_dir = foreign_run(tmp_path / "theirs")
    monkeypatch.setattr(checkpoint_file, "_portable", lambda value, where: value)
    content = checkpoint_file.encode_checkpoint({"model": Attack(tmp_path / "marker")}, 7, None)
    for path in (run_dir / "checkpoints").iterdir():
        path.write_bytes(content)
        with pytest.raises(checkpoint_file.CheckpointError, match="holds more than data and was not loaded"):
            rollmill.load(run_dir, checkpoint=path.name)
    with pytest.warns(match="holds more than data"), pytest.raises(checkpoint_file.CheckpointError):
        rollmill.load(run_dir)
    assert not (tmp_path / "marker").exists()


def test_oversized_network_raises_before_allocation(tmp_path: Path) -> None:
    run_dir = foreign_run(tmp_path / "theirs")
    content = json.loads((run_dir / "config.json").read_text())
    content["model"]["mlp_sizes"] = [10**7, 10**7]
    (run_dir / "config.json").write_text(json.dumps(content))
    with pytest.raises(NotEnoughMemory, match=r"the parameters of the network \(the largest is .*10000000, 10000000"):
        rollmill.evaluate(run_dir, episodes=1)


def test_deeply_nested_files_count_as_damaged(tmp_path: Path) -> None:
    from rollmill.evaluation.saved_spaces import SavedSpacesError
    from rollmill.reporting.metrics import read_metrics
    from rollmill.storage.evaluations import EvaluationQueue

    run_dir = foreign_run(tmp_path / "theirs")
    for name in ("spaces.json", "metrics.jsonl", "evaluations.jsonl"):
        (run_dir / name).write_text("[" * 100_000 + '\n[]\n{"a": 1}\n')
    with pytest.raises(SavedSpacesError, match="does not hold the spaces of a run"):
        rollmill.load(run_dir)
    assert read_metrics(run_dir) == []
    assert EvaluationQueue(run_dir).records() == []


def test_error_says_why_the_own_key_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(signatures.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    run_dir = foreign_run(tmp_path / "mine")
    write_config(run_dir, replace(load_config(run_dir), env=EnvConfig(name="mine_alone:Mine")))
    place = tmp_path / "configuration" / "rollmill" / "signing_key"
    place.chmod(0o644)
    says = r"can be read by others \(mode 644\): run chmod 600"
    with pytest.raises(UntrustedError, match=rf"signed with another key.* --trust .*{place} {says}"):
        rollmill.evaluate(run_dir, episodes=1)

"""Lockstep: what is learned does not depend on who computes it, how many they are, or how fast."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rollmill
from rollmill.envs.factory import make_group, probe
from rollmill.envs.views import own_views
from rollmill.learning.fingerprints import first_difference, read_fingerprints
from rollmill.models.registry import make_model
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.run_config import write_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

slow = pytest.mark.slow

CARTPOLE = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout_length": 16,
    "learner.minibatches": 2,
    "learner.epochs": 2,
    "model.normalise_observations": True,
    "model.normalise_returns": True,
}
RECURRENT = {"model.core": "gru", "model.core_size": 16, "learner.advantage": "vtrace", "learner.epochs": 1}
PONG = {
    "num_envs": 4,
    "envs_per_group": 1,
    "rollout_length": 8,
    "learner.minibatches": 2,
    # Several episodes end within so few steps.
    "env.max_episode_steps": 20,
}
UPDATES = 5


def settings_of(preset: str, updates: int = UPDATES, **changes: Any) -> dict[str, Any]:
    base = CARTPOLE if preset == "gym/CartPole-v1" else PONG
    settings = {"regime": "lockstep", "debug_fingerprints": True, "debug_poison": True, **base, **changes}
    samples = settings["num_envs"] * settings["rollout_length"]
    return {**settings, "total_steps": updates * samples}


def train(
    run_dir: Path, preset: str, *, workers: tuple[int, int] = (1, 1), delay_s: float = 0.0, **changes: Any
) -> Path:
    spread = {"rollout.num_workers": workers[0], "inference.num_workers": workers[1], "debug_delay_s": delay_s}
    run = rollmill.train(preset, run_dir=run_dir, quiet=True, **settings_of(preset, **changes), **spread)
    return run.dir


def longer(preset: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run with checkpoints after its fourth and eighth update."""
    samples = settings_of(preset)["num_envs"] * settings_of(preset)["rollout_length"]
    return {**changes, "updates": 12, "checkpoint.every_steps": 4 * samples}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], Path]:
    """Trains with two workers of each kind, once."""
    from leftovers import nothing_is_left

    runs: dict[str, Path] = {}

    def give(preset: str, changes: dict[str, Any]) -> Path:
        name = repr((preset, changes))
        if name not in runs:
            with nothing_is_left():
                run_dir = tmp_path_factory.mktemp("whole") / "run"
                runs[name] = train(run_dir, preset, workers=(2, 2), **changes)
        return runs[name]

    return give


def assert_same(one: Path, other: Path) -> None:
    a, b = read_fingerprints(one), read_fingerprints(other)
    assert min(len(a), len(b)) >= UPDATES
    assert first_difference(a, b) is None


def records(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics, without what depends on speed."""
    of_speed = re.compile("time_s|.*_per_second|share/.*")
    return [{k: v for k, v in row.items() if not of_speed.fullmatch(k)} for row in read_metrics(run_dir)]


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gym/CartPole-v1", {"lag": 1}),
        ("atari/pong", {"lag": 1}),
        ("gym/CartPole-v1", {"lag": 0}),
        ("gym/CartPole-v1", {"lag": 3, **RECURRENT}),
        ("atari/pong", {"lag": 0, **RECURRENT}),
    ],
)
def test_neither_workers_nor_delays_change_a_bit(tmp_path: Path, preset: str, changes: dict[str, Any]) -> None:
    alone = train(tmp_path / "alone", preset, **changes)
    for name, workers, delay_s in (("two", (2, 2), 0.2), ("four", (4, 1), 0.02)):
        other = train(tmp_path / name, preset, workers=workers, delay_s=delay_s, **changes)
        assert_same(alone, other)
        assert records(alone) == records(other)


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_async_with_the_same_delays_differs(tmp_path: Path) -> None:
    changes = {"regime": "async", "learner.batch_size": 128}
    one = train(tmp_path / "one", "gym/CartPole-v1", **changes)
    other = train(tmp_path / "other", "gym/CartPole-v1", delay_s=0.2, **changes)
    assert first_difference(read_fingerprints(one), read_fingerprints(other)) is not None


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As every process of a run computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("leaves_nothing", "one_thread")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gym/CartPole-v1", {"lag": 3, **RECURRENT}),
        pytest.param("atari/pong", {"lag": 1}, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 0}, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 1}, marks=slow),
        pytest.param("atari/pong", {"lag": 3, **RECURRENT}, marks=slow),
    ],
)
def test_the_run_is_the_serial_loop(
    tmp_path: Path, whole: Callable[[str, dict[str, Any]], Path], preset: str, changes: dict[str, Any]
) -> None:
    # Atari's environments cannot be saved. Checkpoints rebuild them, which the loop does not do.
    changes = changes if preset == "atari/pong" else longer(preset, changes)
    if torch.cuda.is_available():  # The loop computes on the CPU.
        changes = {**changes, "learner.device": "cpu", "inference.device": "cpu"}
    run_dir = whole(preset, changes)
    spread = {"rollout.num_workers": 1, "inference.num_workers": 1}
    config = rollmill.make_config(preset, {**settings_of(preset, **changes), **spread}).resolved()
    from serial_loop import serial

    spec = probe(config.env)
    size = make_model(spec.observation, spec.action, config.model).state_size
    weights = serial(config, Probed(spec, (NetworkSizes(size, 0, 0),)), len(read_fingerprints(run_dir)), tmp_path)
    assert_same(run_dir, tmp_path)
    trained = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state["model"]
    for name, value in weights.items():
        assert torch.equal(trained[name].contiguous(), value.contiguous()), name


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("preset", "changes", "end"),
    [
        ("gym/CartPole-v1", {"lag": 3, **RECURRENT}, signal.SIGKILL),
        pytest.param("gym/CartPole-v1", {"lag": 1}, signal.SIGTERM, marks=slow),
        pytest.param("atari/pong", {"lag": 1}, signal.SIGKILL, marks=slow),
        pytest.param("gym/CartPole-v1", {"lag": 0}, signal.SIGKILL, marks=slow),
    ],
)
def test_ended_and_resumed_is_as_if_never_interrupted(
    tmp_path: Path,
    whole: Callable[[str, dict[str, Any]], Path],
    preset: str,
    changes: dict[str, Any],
    end: signal.Signals,
) -> None:
    changes = longer(preset, changes)
    uninterrupted = whole(preset, changes)
    ended = tmp_path / "ended"
    pid = os.fork()
    if pid == 0:
        try:
            train(ended, preset, workers=(2, 1), delay_s=0.5, **changes)
        finally:
            os._exit(0)
    checkpoints = ended / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("checkpoint_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pid, end)
    os.waitpid(pid, 0)
    before = len(read_fingerprints(ended))
    rollmill.train(run_dir=ended, resume=True, quiet=True, **{"rollout.num_workers": 4, "debug_delay_s": 0.0})
    assert 4 <= before < len(read_fingerprints(ended))
    assert first_difference(read_fingerprints(uninterrupted), read_fingerprints(ended)) is None
    expected, found = records(uninterrupted), records(ended)
    assert [row["batches"] for row in expected] == list(range(len(expected)))
    # A row that is on its way when everything is killed is lost, and no other one is.
    lost = [row for row in expected if row not in found]
    assert [row for row in expected if row not in lost] == found
    assert len(lost) <= (2 if end == signal.SIGKILL else 0), lost


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_told_to_end_within_an_update_ends_well_and_counts_none_of_it(tmp_path: Path) -> None:
    # An update takes seconds, so the time limit interrupts one, whose version must not be requested.
    changes = {"lag": 0, "learner.epochs": 1000, "max_seconds": 1.0, "debug_fingerprints": False}
    changes["learner.schedule"] = "linear"
    settings = settings_of("gym/CartPole-v1", updates=1000, **changes)
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, **settings)
    assert run.ended_by == "max_seconds"
    rows = read_metrics(run.dir)
    assert [row["batches"] for row in rows] == list(range(len(rows)))
    # The schedule depends on agent steps only, and few were taken: no clock affects the result.
    assert rows[-1]["learning_rate"] > 0.8 * rows[0]["learning_rate"]
    counters = CheckpointStore(run.dir / "checkpoints", CheckpointConfig()).load_latest().state["counters"]
    assert (rows[-1]["batches"], rows[-1]["agent_steps"]) == (counters["batches"], counters["agent_steps"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner.batch_size": 64}, "in lockstep a batch is one rollout"),
        ({"num_slots": 12}, "num_slots belongs to regime=async; this run has regime=lockstep"),
        ({"checkpoint.every_s": 60.0}, "after a number of steps"),
        ({"inference.random_actions": True}, "not keyed"),
        ({"lag": -1}, "lag=-1"),
        ({"inference.groups_per_batch": 3}, "whole batches"),
        ({"inference.num_workers": 4, "inference.groups_per_batch": 2}, "one at least for each"),
        ({"learner.precision": "fp64", "inference.precision": "bf16"}, "double precision"),
        ({"regime": "async", "learner.precision": "fp64", "learner.batch_size": 128}, "lockstep"),
        ({"regime": "sync"}, "regime"),
    ],
)
def test_inconsistent_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.make_config("gym/CartPole-v1", settings_of("gym/CartPole-v1", **changes)).resolved()


def test_what_a_group_is_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = set()
    for cores in (1, 2, 7, 64):
        monkeypatch.setattr("rollmill.settings.config.usable_cores", lambda cores=cores: cores)
        config = rollmill.make_config("atari/pong", {"regime": "lockstep"}).resolved()
        groups.add((config.envs_per_group, config.inference.groups_per_batch))
        assert isinstance(config.rollout.num_workers, int)
        assert 4 % config.rollout.num_workers == 0
    assert groups == {(16, 1)}


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_whole_groups(world_size: int) -> None:
    config = rollmill.make_config("atari/pong", {"regime": "lockstep"})
    assert config.resolved(world_size).envs_per_group == 16
    with pytest.raises(ConfigError, match="spread evenly over 3 ranks"):
        config.resolved(3)
    with pytest.raises(ConfigError, match="only lockstep and replay"):
        rollmill.make_config("atari/pong", {"num_envs": 64, "envs_per_group": 8}).resolved(2)
    with pytest.raises(ConfigError, match="V-trace"):
        rollmill.make_config("atari/pong", {"regime": "lockstep", "learner.advantage": "vtrace"}).resolved(2)


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_an_algorithm_goes_over_the_preset_and_under_what_is_given(algo: str) -> None:
    config = rollmill.make_config("atari/pong", {"regime": "lockstep", "lag": 1, "num_envs": 32}, algo=algo)
    length = {"ppo": 128, "impala": 20}[algo]
    assert (config.num_envs, config.rollout_length, config.on_policy.batch_size) == (32, length, 32 * length)
    assert config.on_policy.advantage == {"ppo": "gae", "impala": "vtrace"}[algo]
    assert config.model.encoder == "nature"
    # Cleanba's minibatch, of which fewer environments make fewer.
    assert config.on_policy.minibatch_size == {"ppo": 4096, "impala": 640}[algo]
    with pytest.raises(ValueError, match="choose one of ppo, impala, dqn, ddpg, td3, sac; did you mean ppo"):
        rollmill.make_config("atari/pong", algo="pqo")


def test_the_protocol_of_machado_is_for_atari() -> None:
    config = rollmill.make_config("atari/pong", {"env.atari.noop_max": 5}, protocol="machado")
    atari = config.env.atari
    assert (atari.sticky_actions, atari.full_action_space, atari.life_loss, atari.noop_max) == (0.25, True, False, 5)
    assert (atari.fire_reset, atari.max_frames) == (False, 108_000)
    with pytest.raises(ValueError, match="Atari games"):
        rollmill.make_config("gym/CartPole-v1", protocol="machado")
    with pytest.raises(ValueError, match="choose machado"):
        rollmill.make_config("atari/pong", protocol="machad")


class Drawn(gymnasium.Env[Any, int]):
    """Does not repeat."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.random.random(3, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.random.random(3, np.float32), 1.0, False, False, {}


@pytest.mark.slow
def test_a_run_says_what_it_does_not_control(tmp_path: Path, whole: Callable[[str, dict[str, Any]], Path]) -> None:
    rollmill.register_env("test/drawn", Drawn)
    settings = {"regime": "lockstep", "num_envs": 2, "rollout_length": 8, "learner.minibatches": 1, "total_steps": 32}
    drawn = rollmill.train("test/drawn", run_dir=tmp_path / "drawn", quiet=True, **settings)
    repeats = whole("gym/CartPole-v1", longer("gym/CartPole-v1", {"lag": 3, **RECURRENT}))
    for run_dir, is_said in ((drawn.dir, True), (repeats, False)):
        for file in ("ledger.txt", "run.log"):
            text = (run_dir / file).read_text()
            assert ("does not repeat" in text) == is_said, text


@slow
def test_a_game_is_truncated_after_27000_agent_steps() -> None:
    config = rollmill.make_config("atari/montezuma_revenge", protocol="machado")
    group = make_group(config.env, 1, [1])
    into, outcome = own_views(probe(config.env), 1)
    group.reset(into)
    nothing = np.zeros((1, 1), np.int32)
    for step in range(1, 27_001):
        group.step(nothing, None, into, outcome)
        assert bool(outcome.truncated[0]) == (step == 27_000), step
    assert outcome.episode_length[0] == 27_000
    group.close()


def test_a_resume_keeps_what_the_groups_states_are_made_for(tmp_path: Path) -> None:
    write_config(tmp_path, rollmill.make_config("gym/CartPole-v1", settings_of("gym/CartPole-v1")))
    for changes in ({"lag": 2}, {"seed": 5}, {"num_envs": 16, "learner.batch_size": 256}):
        with pytest.raises(RunDirectoryError, match=next(iter(changes))):
            rollmill.train(run_dir=tmp_path, resume=True, quiet=True, **changes)

"""Runs of the replay regime, with all their real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rollmill
from rollmill.reporting.metric_table import metric_names
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.arena import NotEnoughDisk
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")
slow = pytest.mark.slow

TINY: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "total_steps": 600,
    "learner.batch_size": 16,
    "model.mlp_sizes": "16",
    "replay.capacity": 256,
    "replay.min_size": 100,
    "replay.n_step": 1,
    "replay.update_interval": 2,
    "off_policy.random_steps": 50,
    "debug_poison": True,
    "report_every_s": 0.2,
}


def train(preset: Any, run_dir: Path, **changes: Any) -> tuple[rollmill.Run, dict[str, Any]]:
    run = rollmill.train(preset, run_dir=run_dir, quiet=True, **{**TINY, **changes})
    return run, read_metrics(run_dir)[-1]


RECURRENT: dict[str, Any] = {
    "model.core": "gru",
    "model.core_size": 16,
    "rollout_length": 12,
    "replay.sequence_length": 6,
    "replay.burn_in": 3,
    "replay.n_step": 2,
    "replay.priorities": "proportional",
}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities, which only a memory can tell."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The two positions."""
        return observation[::2]


class Choosy(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Dict observations with a mask, and two choices; to take a forbidden one is an error."""

    observation_space = gymnasium.spaces.Dict(
        {
            "x": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32),
            "picture": gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8),
            "action_mask": gymnasium.spaces.MultiBinary(5),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def _observe(self) -> dict[str, np.ndarray]:
        self.mask = self.np_random.integers(2, size=5).astype(np.int8)
        self.mask[0] = self.mask[3] = 1
        return {
            "x": self.np_random.uniform(-1, 1, 3).astype(np.float32),
            "picture": self.np_random.integers(256, size=(8, 8, 1), dtype=np.uint8),
            "action_mask": self.mask,
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if not (self.mask[action[0]] and self.mask[3 + action[1]]):
            raise ValueError(f"{action} is forbidden by {self.mask}")
        self.steps += 1
        return self._observe(), float(action[0]), self.steps == 7, False, {}


CHOOSY_SEQUENCES: tuple[Any, str, dict[str, Any]] = (Choosy, "dqn", RECURRENT)
CHOOSY_TRANSITIONS: tuple[Any, str, dict[str, Any]] = (
    Choosy,
    "dqn",
    {"replay.priorities": "proportional", "replay.n_step": 3},
)
PENDULUM: tuple[Any, str, dict[str, Any]] = (
    "gym/Pendulum-v1",
    "sac",
    {"rollout.num_workers": 2, "env.max_episode_steps": 40},
)
IN_A_FILE: tuple[Any, str, dict[str, Any]] = ("gym/CartPole-v1", "dqn", {"replay.storage": "file"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., rollmill.Run]:
    """A run that ended, trained once. Tests that resume it do so ``in_a`` folder of theirs."""
    from leftovers import nothing_is_left

    runs: dict[str, rollmill.Run] = {}

    def give(preset: Any, algo: str, changes: dict[str, Any], in_a: Path | None = None) -> rollmill.Run:
        name = repr((preset, algo, changes))
        if name not in runs:
            with nothing_is_left():
                run_dir = tmp_path_factory.mktemp("finished") / "run"
                runs[name], _ = train(preset, run_dir, algo=algo, **changes)
        run = runs[name]
        return run if in_a is None else replace(run, dir=shutil.copytree(run.dir, in_a / "run"))

    return give


@pytest.mark.parametrize(
    ("preset", "algo", "changes"),
    [
        CHOOSY_SEQUENCES,
        pytest.param(*CHOOSY_TRANSITIONS, marks=slow),
        PENDULUM,
        pytest.param(Positions, "dqn", RECURRENT, marks=slow),
        pytest.param(
            "atari/pong",
            "dqn",
            {**RECURRENT, "model.core": "lstm", "off_policy.double": True, "env.max_episode_steps": 30},
            marks=slow,
        ),
        pytest.param("gym/CartPole-v1", "dqn", {"replay.priorities": "proportional", "replay.n_step": 3}, marks=slow),
        pytest.param(
            "gym/Pendulum-v1",
            "td3",
            {"replay.remover": "uniform", "replay.n_step": 2, "env.max_episode_steps": 40},
            marks=slow,
        ),
        pytest.param(
            "gym/Pendulum-v1",
            "ddpg",
            {"off_policy.noise_kind": "ou", "inference.num_workers": 2, "env.max_episode_steps": 40},
            marks=slow,
        ),
        pytest.param(
            "gym/CartPole-v1",
            "sac",
            {"replay.priorities": "proportional", "replay.weights": "global", "replay.stratified": True},
            marks=slow,
        ),
        pytest.param(
            "atari/pong",
            "dqn",
            {
                "replay.priorities": "proportional",
                "replay.weights": "none",
                "replay.n_step": 2,
                "off_policy.double": True,
                "off_policy.dueling": True,
                "env.max_episode_steps": 30,
            },
            marks=slow,
        ),
    ],
)
def test_a_run_collects_and_learns_in_the_ratio_that_was_asked_for(
    preset: Any, algo: str, changes: dict[str, Any], finished: Callable[..., rollmill.Run]
) -> None:
    run = finished(preset, algo, changes)
    last = read_metrics(run.dir)[-1]
    assert run.ended_by == "total_steps"
    assert 600 <= run.agent_steps < 602
    # One SGD step for two agent steps, from 100 on; neither side gets ahead by more than four rows and one interval.
    assert 249 <= last["batches"] <= 250 + 4
    assert last["episodes"] > 0
    assert np.isfinite([value for name, value in last.items() if name.startswith("loss/")]).all()
    if preset is Choosy:  # The last row may have no step of its own.
        assert max(row.get("loss/td_error", 0.0) for row in read_metrics(run.dir)) > 0
    result = rollmill.evaluate(run.dir, episodes=2)
    assert result.deterministic
    assert len(result.returns) == 2


@slow
@pytest.mark.parametrize(("learners", "bound"), [(2, "auto"), (2, 1), (3, 2)])
@pytest.mark.parametrize(
    ("preset", "algo", "settings"),
    [("gym/Pendulum-v1", "td3", {}), ("gym/CartPole-v1", "dqn", {}), ("gym/CartPole-v1", "dqn", RECURRENT)],
)
def test_several_learners_take_every_step_that_is_due_and_none_too_old(
    preset: str, algo: str, settings: dict[str, Any], learners: int, bound: Any, tmp_path: Path
) -> None:
    changes = {"learner.num_learners": learners, "learner.max_staleness": bound, "debug_delay_s": 0.01, **settings}
    run, last = train(preset, tmp_path / "run", algo=algo, **{**changes, "replay.priorities": "proportional"})
    assert run.ended_by == "total_steps"
    assert 249 <= last["batches"] <= 250 + 4
    rows = read_metrics(run.dir)
    ages = [row["replay/age"] for row in rows]
    assert ages[0] is None  # nothing was learned from yet
    assert max(filter(None, ages)) > 0
    assert rows[0]["learners/staleness_mean"] is None
    most = max(filter(None, (row["learners/staleness_max"] for row in rows)))
    assert 1 <= most <= (2 * learners if bound == "auto" else bound)
    assert max(row.get("loss/td_error", 0.0) for row in rows) > 0
    written = {key for row in rows for key in row}
    assert {name for name in metric_names() if name.startswith(("learners/", "share/gradient learner/"))} <= written


class Bright(gymnasium.Env[np.ndarray, int]):
    """Pictures with a background of 120."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        picture = np.full((40, 40, 1), 120, np.uint8)
        picture[self.np_random.integers(40)] = 255
        return picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._observe(), float(action), self.np_random.random() < 0.1, False, {}


def levels(run_dir: Path) -> set[tuple[str, float]]:
    """By which brightness the networks of the newest checkpoint centre pictures."""
    model = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state["model"]
    return {(name.split(".")[0], tensor.item()) for name, tensor in model.items() if name.endswith("moments.shift")}


@slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"learner.num_learners": 2}, {"learner.num_learners": 2, **RECURRENT}],
    ids=["one", "several", "sequences"],
)
def test_pictures_are_centred_in_all_networks_once(changes: dict[str, Any], tmp_path: Path) -> None:
    changes = {"model.centre_pixels": True, "model.encoder": "nature", "model.dense_size": 16, **changes}
    train(Bright, tmp_path / "run", algo="dqn", **{**changes, "off_policy.target_update_every": 100_000})
    assert levels(tmp_path / "run") == {("acting", 120.0), ("target_network", 120.0)}
    rollmill.train(Bright, run_dir=tmp_path / "run", resume=True, quiet=True, total_steps=700)
    assert levels(tmp_path / "run") == {("acting", 120.0), ("target_network", 120.0)}


def begin(run_dir: Path, *arguments: str) -> subprocess.Popen[bytes]:
    settings = [f"--{name}={value}" for name, value in TINY.items() if name != "total_steps"]
    command = [sys.executable, "-m", "rollmill", "train", "gym/CartPole-v1", "--algo=dqn", *settings, *arguments]
    return subprocess.Popen(
        [*command, "--run-dir", str(run_dir), "--quiet", "--total-steps=1000000", "--replay.capacity=100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_steps(process: subprocess.Popen[bytes], run_dir: Path, steps: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended early"
        rows = read_metrics(run_dir) if (run_dir / "metrics.jsonl").exists() else []
        if rows and rows[-1]["agent_steps"] >= steps and list((run_dir / "checkpoints").glob("checkpoint_*")):
            return
        time.sleep(0.1)
    raise AssertionError(f"the run did not come to {steps} agent steps")


@slow
@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_resumed_run_keeps_a_replay_in_a_file(storage: str, how: signal.Signals, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = begin(run_dir, f"--replay.storage={storage}", "--checkpoint.every_steps=200", "--checkpoint.every_s=none")
    wait_for_steps(process, run_dir, 800)
    os.kill(process.pid, how)
    process.wait(30)
    time.sleep(1.5 if how == signal.SIGKILL else 0.0)  # The watchdog ends remaining processes.
    before = read_metrics(run_dir)
    had = before[-1]["agent_steps"]
    run = rollmill.train(run_dir=run_dir, resume=True, quiet=True, total_steps=had + 1500)
    assert had + 1500 <= run.agent_steps <= had + 1502
    rows = read_metrics(run_dir)
    assert [row["agent_steps"] for row in rows] == sorted(row["agent_steps"] for row in rows)
    log = (run_dir / "run.log").read_text()
    last = rows[-1]
    if storage == "file":
        assert "is recreated" not in log
        assert rows[: len(before)] == before, "rows before the checkpoint are kept"
        assert [row["episodes"] for row in rows] == sorted(row["episodes"] for row in rows)
        assert last["batches"] == pytest.approx((run.agent_steps - 100) / 2, abs=8)
    else:
        assert "the replay was in memory and is lost" in log
        assert last["batches"] == pytest.approx((run.agent_steps - 200) / 2, abs=150)


@pytest.mark.slow
def test_a_run_resumes_from_a_checkpoint_of_another_kind_of_device(
    finished: Callable[..., rollmill.Run], tmp_path: Path
) -> None:
    run = finished(*PENDULUM, in_a=tmp_path)
    batches = read_metrics(run.dir)[-1]["batches"]
    checkpoints = CheckpointStore(run.dir / "checkpoints", CheckpointConfig())
    state = checkpoints.load_latest().state
    state["random"] |= {"device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    checkpoints.save(state, run.agent_steps)
    run = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 200)
    assert run.ended_by == "total_steps"
    assert read_metrics(run.dir)[-1]["batches"] > batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [pytest.param(CHOOSY_TRANSITIONS, id="transitions"), pytest.param(CHOOSY_SEQUENCES, id="sequences")],
)
def test_a_run_resumed_for_less_than_a_sample_ends(
    settings: tuple[Any, str, dict[str, Any]], finished: Callable[..., rollmill.Run], tmp_path: Path
) -> None:
    run = finished(*settings, in_a=tmp_path)
    before = read_metrics(run.dir)[-1]
    run = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 8)
    assert run.ended_by == "total_steps"
    # Its replay was in memory: eight steps make no sample of four rows.
    assert read_metrics(run.dir)[-1]["batches"] == before["batches"]


class LosesReplay(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Removes its run's replay, with which the run is still to be ended."""

    def __init__(self, run_dir: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.slots = Path(run_dir) / "replay" / "slots"

    def close(self) -> None:
        super().close()
        self.slots.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_run_whose_replay_is_gone_ends_all_the_same(tmp_path: Path) -> None:
    env = {"env.kwargs": {"run_dir": str(tmp_path / "run")}}
    run, _ = train(LosesReplay, tmp_path / "run", algo="dqn", **env, **{"replay.storage": "file"})
    assert run.ended_by == "total_steps"
    assert "the replay may not have reached the disk" in (run.dir / "run.log").read_text()


@slow
def test_a_replay_of_another_shape_is_recreated_with_a_note(tmp_path: Path) -> None:
    run, _ = train("gym/CartPole-v1", tmp_path / "run", algo="dqn", **{"replay.storage": "file"})
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=1200, **{"replay.capacity": 512})
    assert "is recreated: its slots have another shape" in (run.dir / "run.log").read_text()


@slow
def test_a_replay_that_a_session_did_without_is_recreated(
    finished: Callable[..., rollmill.Run], tmp_path: Path
) -> None:
    run = finished(*IN_A_FILE, in_a=tmp_path)
    # As after the run was killed: the replay holds more than the checkpoint has seen.
    for checkpoint in CheckpointStore(run.dir / "checkpoints", CheckpointConfig()).paths()[:-1]:
        checkpoint.unlink()
    with pytest.raises(ValueError, match=r"replay\.remover='newest': this remover is not known; known: "):
        rollmill.train(
            run_dir=run.dir,
            resume=True,
            quiet=True,
            total_steps=300,
            **{"replay.storage": "memory", "replay.remover": "newest"},
        )
    assert (run.dir / "replay" / "slots").exists(), "a run that cannot begin leaves it"
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=300, **{"replay.storage": "memory"})
    assert not (run.dir / "replay" / "slots").exists(), "it would only fill the disk"
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=600, **{"replay.storage": "file"})
    log = (run.dir / "run.log").read_text()
    assert "is removed (replay.storage=memory)" in log
    assert "is recreated: there is none" in log
    rows = read_metrics(run.dir)
    assert [row["agent_steps"] for row in rows] == sorted(row["agent_steps"] for row in rows)
    assert 600 <= rows[-1]["agent_steps"] <= 602


@pytest.mark.slow
def test_a_replay_file_is_kept_with_other_limits_and_recreated_by_other_rules(
    finished: Callable[..., rollmill.Run], tmp_path: Path
) -> None:
    run = finished(*IN_A_FILE, in_a=tmp_path)
    before = read_metrics(run.dir)[-1]
    with pytest.raises(NotEnoughDisk, match="make room"):
        rollmill.train(
            run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 400, **{"replay.capacity": 10**12}
        )
    run = rollmill.train(
        run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 400, **{"replay.update_interval": 8}
    )
    log = (run.dir / "run.log").read_text()
    assert "resumes with the replay" in log
    assert read_metrics(run.dir)[-1]["batches"] - before["batches"] == pytest.approx(400 / 8, abs=3)
    run = rollmill.train(
        run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 400, **{"replay.n_step": 4}
    )
    log = (run.dir / "run.log").read_text()
    assert "is recreated: it was written with n_step=1 (now 4)" in log
    assert not list((run.dir / "replay").glob("new-*"))
    run = rollmill.train(
        run_dir=run.dir, resume=True, quiet=True, total_steps=run.agent_steps + 300, **{"replay.storage": "memory"}
    )
    assert not (run.dir / "replay" / "slots").exists(), "it would only fill the disk"
    rows = read_metrics(run.dir)
    assert [row["agent_steps"] for row in rows] == sorted(row["agent_steps"] for row in rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay.n_step": 9}, "replay.n_step=9 is more than rollout_length=8"),
        ({"replay.min_size": 600, "replay.capacity": 700}, "leaves nothing to learn"),
        ({"learner.epochs": 2}, "learner.epochs belongs to regime=async or lockstep"),
        ({"model.core": "gru"}, "model.core='gru' with replay.sequence_length=0: a recurrent core learns from"),
        ({"replay.sequence_length": 4}, "model.core='none' with replay.sequence_length=4"),
        ({**RECURRENT, "replay.burn_in": 6}, "n_step - 1 = 13 is more than rollout_length=12"),
        ({**RECURRENT, "replay.sequence_stride": 5}, "that is 5 steps, does not divide rollout_length=12"),
        ({"off_policy.algorithm": "sac"}, "off_policy.algorithm='sac' with algo='dqn', which brings settings of its"),
        (
            {"learner.advantage": "vtrace"},
            "learner.advantage belongs to regime=async or lockstep; this run has",
        ),
        (
            {"off_policy.num_critics": 3},
            "off_policy.num_critics belongs to off_policy.algorithm=td3 or sac",
        ),
        (
            {"learner.kl_target": 0.1},
            "learner.kl_target belongs to learner.schedule=kl; this run has",
        ),
        ({"max_policy_lag": 3}, "learner.max_policy_lag belongs to regime=async; this run has regime=replay"),
        ({"learner.max_staleness": 5}, "learner.max_staleness=5 with one learner"),
        (
            {"model.normalise_observations": True},
            "no normalisers; use false, and divide by known scales in a wrapper of your own",
        ),
        ({"model.normalise_returns": "popart"}, r"='popart': .* no normalisers; use .* set learner\.reward_scale"),
        ({"learner.schedule": "kl"}, "learner.schedule='kl': in the replay regime use 'constant', 'linear' or"),
        ({"replay.update_interval": 501}, "is more than the 500 agent steps after replay.min_size"),
        ({"replay.epsilon": 1e-60}, "replay.epsilon=1e-60: give a finite number above 1e-12"),
        ({"num_slots": 7}, "num_slots belongs to regime=async; this run has regime=replay"),
        ({"learner.precision": "fp64"}, "fp64': only lockstep supports it"),
        ({"learner.num_learners": 3, "learner.max_staleness": 1}, "learner.max_staleness=1: give an integer of at"),
        ({"lag": 3}, "lag belongs to regime=lockstep; this run has regime=replay: omit it, or use"),
        ({"model.squash_actions": True}, "off-policy algorithms always act within the bounds"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.make_config("gym/CartPole-v1", {**TINY, **changes}, algo="dqn")


def test_only_dqn_learns_from_sequences() -> None:
    with pytest.raises(ValueError, match=r"model.core='gru' with off_policy.algorithm='sac'"):
        rollmill.make_config("gym/CartPole-v1", {**TINY, **RECURRENT}, algo="sac")


def test_replay_settings_in_another_regime_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replay.n_step belongs to regime=replay; this run has regime=async"):
        rollmill.make_config("gym/CartPole-v1", {"replay.n_step": 3})


def test_an_error_buffer_that_would_stop_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay.error_buffer=1.9.*use at least 2.0"):
        train("gym/CartPole-v1", tmp_path / "run", algo="dqn", **{"replay.error_buffer": 1.9})


def test_a_replay_larger_than_any_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay.capacity=10000000000000: use at most"):
        train("gym/CartPole-v1", tmp_path / "run", algo="dqn", **{"replay.capacity": 10**13})


def test_actions_that_an_algorithm_has_no_use_for_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^DQN rates every choice, but the action space is"):
        train("gym/Pendulum-v1", tmp_path / "run", algo="dqn")


def test_an_algorithm_that_is_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="algo=5: give a name, one of ppo, impala, dqn"):
        rollmill.make_config("gym/CartPole-v1", {}, algo=5)  # type: ignore[arg-type]


def test_a_replay_that_begins_before_a_sequence_is_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay.min_size=39: with so few agent steps no sequence may be complete"):
        train("gym/CartPole-v1", tmp_path / "run", algo="dqn", **{**RECURRENT, "replay.min_size": 39})


def test_an_off_policy_algorithm_in_another_regime_is_refused() -> None:
    with pytest.raises(ValueError, match=r"regime='lockstep' with algo='sac': off-policy"):
        rollmill.make_config("gym/Pendulum-v1", {"regime": "lockstep"}, algo="sac")


def test_a_regime_without_an_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give off_policy\.algorithm .*, one of dqn, ddpg, td3 and sac"):
        rollmill.make_config("gym/CartPole-v1", {"regime": "replay"})

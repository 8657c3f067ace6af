"""Tuning on this machine, from the first process to settings that a run is made with."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollmill.api import make_config
from rollmill.benchmarking.stepping import TooShortError
from rollmill.cli import main
from rollmill.envs.registry import register_factory
from rollmill.regimes.replay import plan_topology
from rollmill.regimes.setup import Probed
from rollmill.regimes.starting import probe
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.tuning import tune as tuning_module
from rollmill.tuning.model import Allocation
from rollmill.tuning.network import network_times
from rollmill.tuning.profile import demand_of, workload_of
from rollmill.tuning.settings import allocation_of, space_of
from rollmill.tuning.trials import Slice, for_trial, trial
from rollmill.tuning.tuner import Tuner, _Tried, is_clearly_faster

# Nothing is left to be measured at the start.
SMALL = {
    "num_envs": 4,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "learner.micro_batch": 16,
    "learner.precision": "fp32",
    "learner.channels_last": False,
    "inference.precision": "fp32",
}


class SlowSteps(gymnasium.Env[Any, Any]):
    """Ten milliseconds of work a step, so that a batch takes longer than a trial's turn."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.slow
def test_environments_too_slow_for_a_batch_in_a_turn_are_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rollmill.tuning.trials._LEARNED_TIMEOUT_S", 0.2)
    monkeypatch.setattr("rollmill.tuning.tuner._MOST_TRIALS", 2)
    found = tuning_module.tune(SlowSteps, seconds=5.0, output=tmp_path, **{**SMALL, "learner.batch_size": 4096})
    assert found.costs is not None
    assert 0 < found.costs.sgd_step_s < 10
    assert found.limit.startswith(("Simulation", "The number of cores"))
    assert (tmp_path / "tuned.json").exists()


class _Waiting(gymnasium.Env[Any, Any]):
    """A simulator that is elsewhere, or a process of its own that computes."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kind: str) -> None:
        self._helper: subprocess.Popen[bytes] | None = None
        if kind == "helper":
            # Computes for 4 ms of its CPU time whenever it is asked.
            code = (
                "import sys, time\n"
                "while sys.stdin.buffer.read(1):\n"
                "    end = time.process_time() + 0.004\n"
                "    while time.process_time() < end: pass\n"
                "    sys.stdout.buffer.write(b'.'); sys.stdout.buffer.flush()\n"
            )
            pipe = subprocess.PIPE
            self._helper = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, bufsize=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._helper is None:
            time.sleep(0.004)
        else:
            assert self._helper.stdin is not None
            assert self._helper.stdout is not None
            self._helper.stdin.write(b".")
            self._helper.stdout.read(1)
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def close(self) -> None:
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sleep", "helper"])
def test_time_that_a_simulator_takes_elsewhere_is_found(kind: str) -> None:
    name = register_factory(_Waiting)
    given = {
        "env.kwargs": {"kind": kind},
        "num_envs": 4,
        "envs_per_group": 1,
        "rollout.num_workers": 2,
        "rollout_length": 8,
        "learner.batch_size": 64,
    }
    config = make_config(name, given).resolved()
    with Supervisor() as supervisor:
        probed = probe(supervisor, config)
    with trial(config, probed) as turn:
        taken = turn(3.0)
    demand = demand_of(allocation_of(config), workload_of(config, probed), [taken], usable_cores())
    if kind == "sleep":
        assert 0.003 < demand.group_wait_s < 0.006
        assert demand.group_s < 0.002
    else:
        assert demand.group_wait_s < 0.002
        assert 0.003 < demand.group_s < 0.008


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.10, 1.11, 1.09, 1.10], True),
        ([1.08, 1.12, 1.02, 1.07], True),
        # The same mean, of turns that say nothing.
        ([1.30, 0.80, 1.40, 0.90], False),
        ([1.01, 1.01, 1.01, 1.01], False),
        ([1.0] * 8, False),
        ([1.30, 0.90, 1.40, 1.00, 1.2, 1.1, 1.3, 1.2], True),
    ],
)
def test_a_clear_lead_is_one_beyond_luck(ratios: list[float], expected: bool) -> None:
    assert is_clearly_faster(ratios) is expected


class _Machine:
    """Trials of given speeds, in turns that differ by luck."""

    def __init__(self, speeds: list[float], noise: float, seed: int) -> None:
        random = np.random.default_rng(seed)

        def turn(speed: float) -> Slice:
            return Slice(1.0, round(1e6 * speed * math.exp(noise * random.normal())), {}, {})

        self.ended: list[int] = []
        self.tried = [
            _Tried(
                Allocation(i + 1, 1, 1, 64, 1),
                lambda _, speed=speed: turn(speed),  # type: ignore[misc]
                lambda i=i: self.ended.append(i),  # type: ignore[misc]
            )
            for i, speed in enumerate(speeds)
        ]
        config = make_config("gym/CartPole-v1").resolved()
        self.tuner = Tuner(
            config=config,
            name="gym/CartPole-v1",
            overrides={},
            cores=2,
            algo=None,
            protocol=None,
            say=lambda _: None,
        )

    def winner(self) -> tuple[int, float]:
        self.tuner._take_turns(self.tried, 0.0)
        best, gain = self.tuner._confirmed(self.tried)
        return self.tried.index(best), gain


def test_luck_replaces_no_preset() -> None:
    equal = [_Machine([1.0] * 6, 0.1, seed).winner() for seed in range(200)]
    assert sum(index != 0 for index, _ in equal) <= 30
    better = [_Machine([1.0, 1.0, 1.25, 0.9], 0.05, seed).winner() for seed in range(50)]
    assert sum(index == 2 for index, _ in better) >= 45
    # What is said of the gain owes nothing to having been the luckiest.
    assert np.mean([gain for index, gain in better if index == 2]) == pytest.approx(1.25, rel=0.03)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_candidate_that_fails_is_left_out_and_the_presets_own_failure_is_told(failing: int) -> None:
    machine = _Machine([1.0, 1.2, 1.3], 0.01, 0)
    whole, turns = machine.tried[failing].turn, []

    def turn(seconds: float) -> Slice:
        turns.append(whole(seconds))
        if len(turns) == 4:
            raise TooShortError("nothing was stepped\nat all")
        return turns[-1]

    machine.tried[failing].turn = turn
    if failing == 0:
        with pytest.raises(TooShortError):
            machine.winner()
        return
    index, _ = machine.winner()
    assert index == (2 if failing == 1 else 1)
    if failing == 2:
        assert machine.ended == [2]
        (note,) = machine.tuner.notes
        assert note.startswith("left out, because it failed: 64 environments")
        assert note.endswith(": nothing was stepped")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_train_with_tune_runs_with_what_was_chosen_and_a_resume_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[tuning_module.Tuning] = []

    def tune(*args: object, **kwargs: object) -> tuning_module.Tuning:
        found.append(quick(*args, **kwargs))
        return found[-1]

    quick = functools.partial(tuning_module.tune, seconds=1.0)
    monkeypatch.setattr(tuning_module, "tune", tune)
    given = [f"--{key}={value}" for key, value in SMALL.items()]
    run_dir = str(tmp_path / "run")
    argv = ["train", "gym/CartPole-v1", "--tune", "--total-steps", "256", "--run-dir", run_dir, *given]
    assert main(argv) == 0
    (tuning,) = found
    # The preset's own is among what was tried, and a user's value stays.
    assert tuning.tried[0].allocation == tuning.preset
    assert tuning.allocation.num_envs == 4
    assert tuning.steps_per_second > 0
    assert tuning.costs is not None
    assert tuning.costs.sgd_step_s > 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["rollout"]["num_workers"] == tuning.allocation.rollout_workers
    assert saved["envs_per_group"] == tuning.allocation.envs_per_group
    assert "limits the speed" in capsys.readouterr().err
    assert main(["train", "--tune", "--resume", "--run-dir", run_dir, "--total-steps", "512"]) == 0
    assert len(found) == 1
    resumed = json.loads((tmp_path / "run" / "config.json").read_text())
    assert resumed["rollout"] == saved["rollout"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_replay_run_is_tried_at_its_ratio_and_for_another_machine_nothing_is_tried(tmp_path: Path) -> None:
    result = tuning_module.tune(
        "gym/CartPole-v1", algo="dqn", seconds=1.0, cores=64, output=tmp_path, **{"replay.min_size": 500}
    )
    assert result.update_interval == 2.0
    assert result.gain is None
    assert not result.tried
    assert result.curves.cores == 64
    assert result.allocation.learner_cores <= 8
    # One SGD step for each interval: what was measured lies on the ratio.
    (_, _, steps), *_ = result.measured
    assert steps > 0
    assert (tmp_path / "tuning.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "rollmill", "tune", "gym/CartPole-v1", "--seconds", "60"]
    with subprocess.Popen(
        [*argv, *(f"--{key}={value}" for key, value in SMALL.items())],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not list(tmp_path.glob("rollmill-tune-*/*")):
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert not list(tmp_path.glob("rollmill-tune-*"))


def test_a_trial_is_the_run_without_its_beginning() -> None:
    config = make_config("gym/CartPole-v1", {"eval_every": 100, "target_return": 3.0}, algo="dqn").resolved()
    tried = for_trial(config, 1)
    assert tried.eval_every is None
    assert tried.target_return is None
    assert tried.off_policy.random_steps == 0
    assert tried.replay.min_size < config.replay.min_size
    assert tried.replay.update_interval == config.replay.update_interval


def test_a_trial_of_a_replay_for_the_disk_fits_into_memory() -> None:
    settings = {"replay.capacity": 1_500_000_000, "replay.storage": "file", "total_steps": 10**10}
    config = make_config("gym/CartPole-v1", settings, algo="dqn").resolved()
    tried = for_trial(config, 1)
    assert tried.replay.storage == "memory"
    assert tried.replay.capacity == 100_000
    with Supervisor() as supervisor:
        plan_topology(tried, probe(supervisor, tried))


RECURRENT = {
    "num_envs": 8,
    "model.core": "gru",
    "model.core_size": 16,
    "rollout_length": 40,
    "replay.sequence_length": 20,
    "replay.burn_in": 10,
    "replay.n_step": 5,
    "learner.batch_size": 16,
}


@pytest.fixture
def recurrent() -> Iterator[tuple[Config, Probed]]:
    """A learner from sequences, 34 steps long."""
    config = make_config("gym/CartPole-v1", RECURRENT, algo="dqn").resolved()
    with Supervisor() as supervisor:
        yield config, probe(supervisor, config)


def test_a_replay_of_sequences_is_tried_with_enough_steps_for_them(recurrent: tuple[Config, Probed]) -> None:
    config, probed = recurrent
    assert config.replay.window == 34
    tried = for_trial(config, probed.spec.rows_per_env)
    assert tried.replay.min_size >= 8 * 34
    plan_topology(tried, probed)
    space = space_of(config, workload_of(config, probed), {}, 16)
    most = int(space.allocations().num_envs.max())
    assert most <= config.replay.min_size // 34
    plan_topology(replace(config, num_envs=most, envs_per_group=most), probed)


def test_a_learner_of_sequences_is_timed(recurrent: tuple[Config, Probed]) -> None:
    config, probed = recurrent
    with Supervisor() as supervisor:
        times = network_times(supervisor, config, probed, (1, 2))
    assert times.row_s > 0
    assert times.threads(2.0) >= 1.0
